// The laboratory's side of a node: memories, mailboxes, links, events, wakes, the recording and the clock loop.
//
// One `Engine` per process. `engine.cpp` knows no Verilated model; `nodes.cpp` is the only file that does (class `Nodes`).
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bellwire {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 NEVER = ~u64{0};
constexpr u32 MEMORIES = 2;
constexpr u32 PORTS = 4;
constexpr u32 TRACE_PORT = 3;
constexpr u64 MEMORY_BYTES = u64{1} << 36;
constexpr u64 MAX_NODES = 256;
// Time steps (ps) of one cycle: 1 GHz, so that a cycle reads as a nanosecond.
constexpr u64 CYCLE_STEPS = 1000;

// One record of the event log (decision 3).
struct Event {
    u64 cycle;
    u16 node;
    u16 kind;
    u8 payload[20];
};
static_assert(sizeof(Event) == 32);

// What Python asks for: a mailbox command (op 1..4), or one of the requests below.
struct Request {
    u64 due;      // mailbox: due cycle; alarm: its cycle; watch: see Watcher::late_from
    u64 address;  // mailbox: address; watch: offset in the memory
    u64 token;
    u8 node;
    u8 port;  // mailbox: port; watch: memory
    u8 op;
    u8 length;
    u8 data[64];  // watch: its patience, 8 bytes
    u32 padding;
};
static_assert(sizeof(Request) == 96);
enum Op : u8 { STORE = 1, LOAD = 2, CONFIGURE = 3, TRACE = 4, WATCH = 16, UNWATCH = 17, ALARM = 18, UNALARM = 19 };

// Why Python is woken.
struct Wake {
    u64 cycle;
    u64 token;
    u16 kind;
    u16 node;
    u16 port;  // response: port; watch: memory
    u16 padding;
    u8 data[64];  // response, watch: the line; alarm: unspecified
};
static_assert(sizeof(Wake) == 88);
enum WakeKind : u16 { WAKE_WATCH = 1, WAKE_ALARM = 2, WAKE_RESPONSE = 3 };

// Why the clock loop was left. Python sees the last one in `Shared::stop`.
enum class Stop : u64 {
    none = 0,
    asked = 1,     // Python said stop
    deadlock = 2,  // nothing due and nothing pending anywhere
    limit = 3,     // the next cycle lies beyond the cycle limit
    error = 4,     // `Shared::error` has the text
    wake = 5,      // wakes are recorded and no handler is set
    deadline = 6,  // a timed callback of the simulator interface is due first
};

// The block that Python maps: requests in, wakes out.
struct Shared {
    static constexpr u64 REQUESTS = 4096;
    static constexpr u64 WAKES = 4096;
    u64 now;         // last evaluated cycle; all ones before cycle 0
    u64 wake_count;  // valid entries of `wakes`
    u64 stop;
    u64 request_capacity;
    u64 wake_capacity;
    char error[216];
    Request requests[REQUESTS];
    Wake wakes[WAKES];
};

// From a wire port of a node to one of a node, which may be the same.
struct Link {
    u32 from, from_port, to, to_port;
    u64 cycles;
};

// Who wants to be told of commits to a line. With patience: of each one, and from cycle `late_from` on only that much later,
// together with others. Without: of the next one, at once.
struct Watcher {
    u64 token, late_from, patience;
};

// A command in a mailbox waits for (due, order of push).
struct Queued {
    u64 due, order;
    u32 slot;
    bool operator<(const Queued& other) const {  // std::priority_queue is a max heap
        return due != other.due ? due > other.due : order > other.order;
    }
};

class Mailbox {
public:
    u64 due() const { return heap_.empty() ? NEVER : heap_.top().due; }
    void push(const Request& request, u64 order);
    bool pop(u64 now, Request& request);

private:
    std::priority_queue<Queued> heap_;
    std::vector<Request> pool_;
    std::vector<u32> free_;
};

struct Preload {
    u32 node, memory;
    u64 offset;
    std::vector<u8> bytes;
};

// Hook into the Verilated models.
class Models {
public:
    virtual ~Models() = default;
    virtual void reset() = 0;
    // Wire ports of a node.
    virtual u32 ports() const = 0;
    // Runs until a wake that no handler took, a stop, or the time `deadline` (steps).
    virtual Stop run(u64 deadline) = 0;
    virtual bool trace_open(const char* path, u64 first, u64 last, const char* names) = 0;
    virtual void trace_close() = 0;
};

class Engine {
public:
    explicit Engine(u32 nodes);
    static Engine& get();

    u32 nodes() const { return nodes_; }
    u8* memory(u32 node, u32 memory) { return memories_[node * MEMORIES + memory]; }
    Mailbox& mailbox(u32 node, u32 port) { return mailboxes_[node * PORTS + port]; }
    u64 mail_due(u32 node) const { return mail_due_[node]; }

    // Before cycle 0.
    bool link(const Link& link);
    bool preload(u32 node, u32 memory, u64 offset, const u8* bytes, u64 length);
    bool start(u64 limit, bool skip, bool record);

    // Requests. False: refused, and `shared.error` says why.
    bool request(const Request& request);
    bool flush(u64 count);
    void stop(Stop why) {
        running = false;
        shared->stop = static_cast<u64>(why);
    }
    bool fail(const std::string& text);

    // From the RTL.
    void event(u32 node, u32 kind, const void* payload);
    void tap(u64 cycle, u32 node, const void* beat, size_t size);
    bool pop(u32 node, u32 port, Request& request);
    void response(u32 node, u32 port, u64 token, const void* data);
    void write(u32 node, u32 memory, u64 address, u64 byte_enable, const void* data);
    void read(u32 node, u32 memory, u64 address, void* data);

    // The clock loop's side.
    u64 alarm_due() const { return alarms_.empty() ? NEVER : alarms_.begin()->first.first; }
    void fire_alarms();
    bool has_wakes() const { return wakes_.size() > wakes_taken_; }
    // Python must be told before `cycle` is evaluated.
    bool wakes_before(u64 cycle) const { return has_wakes() && wake_due_ < cycle; }
    u64 take_wakes();

    void sort_events();
    std::string events_sha256();
    bool save(const char* path);
    bool load(const char* path);

    Shared* shared;
    Models* models = nullptr;
    std::vector<Event> events;
    std::vector<Link> links;
    // What nodes sent on the wire, if `tapping`: records of cycle, node, and the beat padded to whole words.
    std::vector<u64> tapped;
    size_t tap_words = 0;  // of a record
    bool tapping = false;
    bool running = false;
    bool started = false;
    bool muted = true;  // during reset nothing reaches the laboratory
    bool skip = true;
    bool replaying = false;
    u64 now = 0;  // the cycle being evaluated, or the next one
    u64 limit = NEVER;
    u64 evaluated = 0;  // node-cycles
    u64 wakes = 0;      // records
    u64 visits = 0;     // times that Python ran for wakes
    u64 end = NEVER;    // last cycle of the recorded run
    // Takes the last cycle and the number of records in `Shared::wakes`.
    void (*handler)(unsigned long long, unsigned long long) = nullptr;

private:
    static u64 line_key(u32 node, u32 memory, u64 offset) {
        return (offset >> 6) | (u64{node} << 32) | (u64{memory} << 48);
    }
    void update_mail(u32 node);
    void wake(WakeKind kind, u32 node, u32 port, u64 token, const void* data, u64 due);

    u32 nodes_;
    std::vector<u8*> memories_;
    std::vector<Mailbox> mailboxes_;
    std::vector<u64> mail_due_;
    std::unordered_map<u64, std::vector<Watcher>> watches_;
    std::vector<u32> watch_count_;
    std::map<std::pair<u64, u64>, u32> alarms_;  // (cycle, token): node
    std::vector<Wake> wakes_;
    size_t wakes_taken_ = 0;
    u64 wake_due_ = NEVER;  // last cycle that may be evaluated before Python is told
    bool recording_ = false;
    std::vector<Request> pushes_;
    std::vector<Preload> preloads_;
    u64 order_ = 0;
};

// nodes.cpp. `context` is the VerilatedContext that the bench lives in.
Models* make_models(Engine& engine, void* context);
// sha256.cpp
std::string sha256(const void* data, size_t size);

}  // namespace bellwire
