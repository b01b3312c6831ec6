#include "engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <tuple>

#include "svdpi.h"

namespace bellwire {
namespace {

Engine* the_engine = nullptr;

bool before(const Event& a, const Event& b) {
    if (a.cycle != b.cycle) return a.cycle < b.cycle;
    if (a.node != b.node) return a.node < b.node;
    if (a.kind != b.kind) return a.kind < b.kind;
    return std::memcmp(a.payload, b.payload, sizeof a.payload) < 0;
}

std::vector<Watcher>::iterator find_watcher(std::vector<Watcher>& watchers, u64 token) {
    return std::find_if(watchers.begin(), watchers.end(), [token](const Watcher& watcher) { return watcher.token == token; });
}

}  // namespace

void Mailbox::push(const Request& request, u64 order) {
    u32 slot;
    if (free_.empty()) {
        slot = static_cast<u32>(pool_.size());
        pool_.push_back(request);
    } else {
        slot = free_.back();
        free_.pop_back();
        pool_[slot] = request;
    }
    heap_.push({request.due, order, slot});
}

bool Mailbox::pop(u64 now, Request& request) {
    if (due() > now) return false;
    const u32 slot = heap_.top().slot;
    heap_.pop();
    request = pool_[slot];
    free_.push_back(slot);
    return true;
}

Engine& Engine::get() { return *the_engine; }

Engine::Engine(u32 nodes)
    : shared(new Shared{}), nodes_(nodes), mailboxes_(nodes * PORTS), mail_due_(nodes, NEVER), watch_count_(nodes * MEMORIES) {
    the_engine = this;
    shared->now = NEVER;
    shared->request_capacity = Shared::REQUESTS;
    shared->wake_capacity = Shared::WAKES;
    for (u32 i = 0; i < nodes * MEMORIES; ++i) {
        void* base = mmap(nullptr, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            std::fprintf(stderr,
                         "engine: cannot reserve 64 GiB of address space per memory (%u of %u done); "
                         "check `ulimit -v` and /proc/sys/vm/overcommit_memory (2 forbids it)\n",
                         i, nodes * MEMORIES);
            std::exit(3);
        }
        memories_.push_back(static_cast<u8*>(base));
    }
}

bool Engine::fail(const std::string& text) {
    std::snprintf(shared->error, sizeof shared->error, "%s", text.c_str());
    return false;
}

bool Engine::link(const Link& link) {
    if (started) return fail("links are set before cycle 0");
    if (link.from >= nodes_ || link.to >= nodes_) return fail("a link names a node that does not exist");
    if (std::max(link.from_port, link.to_port) >= models->ports()) return fail("a link names a port that the nodes do not have");
    if (link.cycles < 1) return fail("the propagation of a link is at least 1 cycle");
    for (const Link& other : links)
        if (std::tie(link.from, link.from_port) == std::tie(other.from, other.from_port) ||
            std::tie(link.to, link.to_port) == std::tie(other.to, other.to_port))
            return fail("a port sends on one link and receives from one link");
    links.push_back(link);
    return true;
}

bool Engine::preload(u32 node, u32 memory, u64 offset, const u8* bytes, u64 length) {
    if (started) return fail("memory is written directly only before cycle 0; later through the node's ports");
    if (node >= nodes_ || memory >= MEMORIES) return fail("no such memory");
    if (offset > MEMORY_BYTES || length > MEMORY_BYTES - offset) return fail("write beyond the end of the memory");
    std::memcpy(this->memory(node, memory) + offset, bytes, length);
    preloads_.push_back({node, memory, offset, std::vector<u8>(bytes, bytes + length)});
    return true;
}

bool Engine::start(u64 cycle_limit, bool idle_skip, bool record) {
    if (started) return fail("the machine was started before");
    limit = cycle_limit;
    skip = idle_skip;
    recording_ = recording_ || record;
    if (!recording_) pushes_.clear();
    started = running = true;
    shared->stop = static_cast<u64>(Stop::none);
    models->reset();
    muted = false;
    return true;
}

bool Engine::request(const Request& request) {
    if (request.node >= nodes_) return fail("no such node");
    if (request.op <= TRACE && shared->now != NEVER && request.due <= shared->now)
        return fail("a command is due in cycle " + std::to_string(request.due) + ", but cycle " + std::to_string(shared->now) +
                    " is done");
    switch (request.op) {
        case STORE:
        case LOAD:
        case CONFIGURE:
        case TRACE:
            if (request.port >= PORTS || request.length > 64) return fail("no such port, or more than 64 bytes");
            mailbox(request.node, request.port).push(request, order_++);
            update_mail(request.node);
            // Before the start nobody has said yet whether the run is recorded.
            if (recording_ || !started) pushes_.push_back(request);
            return true;
        case WATCH: {
            if (request.port >= MEMORIES) return fail("no such memory");
            u64 patience;
            std::memcpy(&patience, request.data, sizeof patience);
            auto& watchers = watches_[line_key(request.node, request.port, request.address & (MEMORY_BYTES - 1))];
            const auto known = find_watcher(watchers, request.token);
            if (known != watchers.end()) {
                known->late_from = request.due;
                return true;
            }
            watchers.push_back({request.token, request.due, patience});
            ++watch_count_[request.node * MEMORIES + request.port];
            return true;
        }
        case UNWATCH: {
            const auto found = watches_.find(line_key(request.node, request.port, request.address & (MEMORY_BYTES - 1)));
            if (found == watches_.end()) return true;
            auto& watchers = found->second;
            const auto watcher = find_watcher(watchers, request.token);
            if (watcher == watchers.end()) return true;
            watchers.erase(watcher);
            --watch_count_[request.node * MEMORIES + request.port];
            if (watchers.empty()) watches_.erase(found);
            return true;
        }
        case ALARM:
            if (shared->now != NEVER && request.due <= shared->now) return fail("an alarm lies in the past");
            alarms_[{request.due, request.token}] = request.node;
            return true;
        case UNALARM:
            alarms_.erase({request.due, request.token});
            return true;
        default:
            return fail("no such request");
    }
}

bool Engine::flush(u64 count) {
    for (u64 i = 0; i < count; ++i)
        if (!request(shared->requests[i])) return false;
    return true;
}

void Engine::update_mail(u32 node) {
    u64 due = NEVER;
    for (u32 port = 0; port < PORTS; ++port) due = std::min(due, mailbox(node, port).due());
    mail_due_[node] = due;
}

void Engine::tap(u64 cycle, u32 node, const void* beat, size_t size) {
    tap_words = 2 + (size + 7) / 8;
    const size_t at = tapped.size();
    tapped.resize(at + tap_words);
    tapped[at] = cycle;
    tapped[at + 1] = node;
    std::memcpy(&tapped[at + 2], beat, size);
}

void Engine::event(u32 node, u32 kind, const void* payload) {
    if (muted) return;
    Event& record = events.emplace_back();
    record.cycle = now;
    record.node = static_cast<u16>(node);
    record.kind = static_cast<u16>(kind);
    std::memcpy(record.payload, payload, sizeof record.payload);
}

bool Engine::pop(u32 node, u32 port, Request& request) {
    if (muted || !mailbox(node, port).pop(now, request)) return false;
    update_mail(node);
    return true;
}

void Engine::wake(WakeKind kind, u32 node, u32 port, u64 token, const void* data, u64 due) {
    ++wakes;
    if (replaying) return;
    wake_due_ = std::min(wake_due_, due);
    Wake& record = wakes_.emplace_back();
    record = Wake{now, token, kind, static_cast<u16>(node), static_cast<u16>(port), 0, {}};
    if (data) std::memcpy(record.data, data, sizeof record.data);
}

void Engine::response(u32 node, u32 port, u64 token, const void* data) {
    if (!muted) wake(WAKE_RESPONSE, node, port, token, data, now);
}

void Engine::write(u32 node, u32 memory, u64 address, u64 byte_enable, const void* data) {
    if (muted) return;
    const u64 offset = address & (MEMORY_BYTES - 1) & ~u64{63};
    u8* line = this->memory(node, memory) + offset;
    const u8* bytes = static_cast<const u8*>(data);
    if (byte_enable == ~u64{0}) {
        std::memcpy(line, bytes, 64);
    } else {
        for (u64 rest = byte_enable; rest; rest &= rest - 1) {
            const int lane = __builtin_ctzll(rest);
            line[lane] = bytes[lane];
        }
    }
    u32& watched = watch_count_[node * MEMORIES + memory];
    if (watched == 0) return;
    const auto found = watches_.find(line_key(node, memory, offset));
    if (found == watches_.end()) return;
    auto& watchers = found->second;
    for (const Watcher& watcher : watchers)
        wake(WAKE_WATCH, node, memory, watcher.token, line, watcher.late_from <= now ? now + watcher.patience : now);
    const auto once = std::remove_if(watchers.begin(), watchers.end(), [](const Watcher& watcher) { return !watcher.patience; });
    watched -= static_cast<u32>(watchers.end() - once);
    watchers.erase(once, watchers.end());
    if (watchers.empty()) watches_.erase(found);
}

void Engine::read(u32 node, u32 memory, u64 address, void* data) {
    std::memcpy(data, this->memory(node, memory) + (address & (MEMORY_BYTES - 1) & ~u64{63}), 64);
}

void Engine::fire_alarms() {
    while (alarm_due() <= now) {
        const auto first = alarms_.begin();
        wake(WAKE_ALARM, first->second, 0, first->first.second, nullptr, now);
        alarms_.erase(first);
    }
}

// Moves the next records to where Python reads them. Within a cycle their order must not depend on Verilator's choices.
u64 Engine::take_wakes() {
    if (wakes_taken_ == 0 && wakes_.size() > 1)
        std::stable_sort(wakes_.begin(), wakes_.end(), [](const Wake& a, const Wake& b) {
            return std::tie(a.cycle, a.node, a.kind, a.token) < std::tie(b.cycle, b.node, b.kind, b.token);
        });
    const u64 count = std::min<u64>(wakes_.size() - wakes_taken_, Shared::WAKES);
    if (count) std::memcpy(shared->wakes, wakes_.data() + wakes_taken_, count * sizeof(Wake));
    wakes_taken_ += count;
    if (wakes_taken_ == wakes_.size()) {
        wakes_.clear();
        wakes_taken_ = 0;
        wake_due_ = NEVER;
    }
    shared->wake_count = count;
    return count;
}

// Records come in cycle order; within a cycle their order is the simulator's choice.
void Engine::sort_events() {
    for (size_t i = 0; i < events.size();) {
        size_t j = i + 1;
        while (j < events.size() && events[j].cycle == events[i].cycle) ++j;
        if (j - i > 1) std::sort(events.begin() + i, events.begin() + j, before);
        i = j;
    }
}

std::string Engine::events_sha256() {
    sort_events();
    return sha256(events.data(), events.size() * sizeof(Event));
}

// The recording: magic, counts, then links, bulk writes and commands as they are in memory (little endian).
static constexpr char MAGIC[8] = {'B', 'W', 'S', 'T', 'I', 'M', '0', '2'};

bool Engine::save(const char* path) {
    if (!recording_) return fail("the run was not recorded");
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "wb"), std::fclose);
    if (!file) return fail(std::string("cannot write ") + path);
    bool good = true;
    const auto put = [&](const void* data, size_t size) { good = good && (!size || std::fwrite(data, size, 1, file.get()) == 1); };
    const u64 head[] = {nodes_, links.size(), preloads_.size(), pushes_.size(), shared->now};
    put(MAGIC, sizeof MAGIC);
    put(head, sizeof head);
    put(links.data(), links.size() * sizeof(Link));
    for (const Preload& preload : preloads_) {
        const u64 fields[] = {preload.node, preload.memory, preload.offset, preload.bytes.size()};
        put(fields, sizeof fields);
        put(preload.bytes.data(), preload.bytes.size());
    }
    put(pushes_.data(), pushes_.size() * sizeof(Request));
    return good || fail(std::string("cannot write all of ") + path);
}

bool Engine::load(const char* path) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), std::fclose);
    if (!file) return fail(std::string("cannot read ") + path);
    bool good = true;
    const auto get = [&](void* data, size_t size) { return good = good && (!size || std::fread(data, size, 1, file.get()) == 1); };
    char magic[sizeof MAGIC];
    u64 head[5];
    if (!get(magic, sizeof magic) || std::memcmp(magic, MAGIC, sizeof magic) || !get(head, sizeof head))
        return fail(std::string(path) + " is not a recording");
    if (head[0] != nodes_) return fail("the recording is of another number of nodes");
    for (u64 i = 0; i < head[1]; ++i) {
        Link one;
        if (!get(&one, sizeof one) || !link(one)) return fail("the recording is damaged (links)");
    }
    std::vector<u8> bytes;
    for (u64 i = 0; i < head[2]; ++i) {
        u64 fields[4];
        if (!get(fields, sizeof fields) || fields[3] > MEMORY_BYTES) return fail("the recording is damaged (memory)");
        bytes.resize(fields[3]);
        if (!get(bytes.data(), bytes.size()) ||
            !preload(static_cast<u32>(fields[0]), static_cast<u32>(fields[1]), fields[2], bytes.data(), bytes.size()))
            return fail("the recording is damaged (memory)");
    }
    for (u64 i = 0; i < head[3]; ++i) {
        Request one;
        if (!get(&one, sizeof one) || !request(one)) return fail("the recording is damaged (commands)");
    }
    end = head[4];
    return true;
}

}  // namespace bellwire

// ---------------------------------------------------------------------------------------------------------------------
// Called by the RTL.

using bellwire::Engine;

extern "C" {

void bw_event(unsigned node, unsigned kind, const svBitVecVal* payload) { Engine::get().event(node, kind, payload); }

int bw_pop(unsigned node, unsigned port, unsigned char* op, unsigned long long* address, unsigned char* length,
           unsigned long long* token, svBitVecVal* data) {
    bellwire::Request request;
    if (!Engine::get().pop(node, port, request)) return 0;
    *op = request.op;
    *address = request.address;
    *length = request.length;
    *token = request.token;
    std::memcpy(data, request.data, sizeof request.data);
    return 1;
}

int bw_trace(unsigned node, unsigned short* kind, svBitVecVal* payload) {
    bellwire::Request request;
    if (!Engine::get().pop(node, bellwire::TRACE_PORT, request)) {
        // The caller's variables are copied back in any case, and waveforms show them.
        *kind = 0;
        std::memset(payload, 0, sizeof(bellwire::Event::payload));
        return 0;
    }
    Engine::get().event(node, static_cast<bellwire::u16>(request.token), request.data);
    *kind = static_cast<unsigned short>(request.token);
    std::memcpy(payload, request.data, sizeof(bellwire::Event::payload));
    return 1;
}

void bw_response(unsigned node, unsigned port, unsigned long long token, const svBitVecVal* data) {
    Engine::get().response(node, port, token, data);
}

void bw_mem_read(unsigned node, unsigned memory, unsigned long long address, svBitVecVal* data) {
    Engine::get().read(node, memory, address, data);
}

void bw_mem_write(unsigned node, unsigned memory, unsigned long long address, unsigned long long byte_enable,
                  const svBitVecVal* data) {
    Engine::get().write(node, memory, address, byte_enable, data);
}

// ---------------------------------------------------------------------------------------------------------------------
// Called by Python (sim/machine.py). Functions that can refuse return 1 for done and 0 for refused.

unsigned bw_nodes() { return Engine::get().nodes(); }
void* bw_shared() { return Engine::get().shared; }
void* bw_memory(unsigned node, unsigned memory) {
    return node < Engine::get().nodes() && memory < bellwire::MEMORIES ? Engine::get().memory(node, memory) : nullptr;
}
int bw_link(unsigned from, unsigned from_port, unsigned to, unsigned to_port, unsigned long long cycles) {
    return Engine::get().link({from, from_port, to, to_port, cycles});
}
int bw_preload(unsigned node, unsigned memory, unsigned long long offset, const unsigned char* bytes, unsigned long long length) {
    return Engine::get().preload(node, memory, offset, bytes, length);
}
int bw_start(unsigned long long limit, int skip, int record, void (*handler)(unsigned long long, unsigned long long)) {
    Engine::get().handler = handler;
    return Engine::get().start(limit, skip, record);
}
void bw_stop() { Engine::get().stop(bellwire::Stop::asked); }
int bw_flush(unsigned long long count) { return Engine::get().flush(count); }
void* bw_events(unsigned long long* count) {
    Engine& engine = Engine::get();
    engine.sort_events();
    *count = engine.events.size();
    return engine.events.data();
}
void bw_tap() { Engine::get().tapping = true; }
void* bw_tapped(unsigned long long* records, unsigned long long* words) {
    Engine& engine = Engine::get();
    *words = engine.tap_words;
    *records = engine.tap_words ? engine.tapped.size() / engine.tap_words : 0;
    return engine.tapped.data();
}
void bw_counters(unsigned long long* out) {
    const Engine& engine = Engine::get();
    out[0] = engine.now;
    out[1] = engine.evaluated;
    out[2] = engine.wakes;
    out[3] = engine.visits;
    out[4] = engine.events.size();
}
int bw_save(const char* path) { return Engine::get().save(path); }
int bw_waves_open(const char* path, unsigned long long first, unsigned long long last, const char* names) {
    return Engine::get().models->trace_open(path, first, last, names);
}
void bw_waves_close() { Engine::get().models->trace_close(); }

}  // extern "C"
