// The Verilated nodes and the lock-step clock loop (decision 2). The only file that includes the generated model.
#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>
#include <vector>

#include "Vnode.h"
#include "engine.h"
#include "verilated.h"
#include "waves.h"

namespace bellwire {
namespace {

constexpr u64 NO_CYCLE = (u64{1} << 48) - 1;  // `next_due`: none
constexpr u32 RESET_CYCLES = 4;

using Beat = std::remove_reference_t<decltype(Vnode::rx_beat)>;
static_assert(std::is_same_v<Beat, std::remove_reference_t<decltype(Vnode::tx_beat)>>, "both directions of a link carry the same beat");

// A queue of things that come in the order in which they are due.
template <typename T>
class Timed {
public:
    u64 due() const { return first_ == last_ ? NEVER : ring_[first_ & mask_].due; }
    void push(u64 due, const T& value) {
        if (last_ - first_ == ring_.size()) grow();
        ring_[last_++ & mask_] = {due, value};
    }
    const T& front() const { return ring_[first_ & mask_].value; }
    void pop() { ++first_; }

private:
    struct Entry {
        u64 due;
        T value;
    };
    void grow() {
        std::vector<Entry> larger(ring_.size() * 2);
        for (u64 i = first_; i != last_; ++i) larger[i - first_] = ring_[i & mask_];
        last_ -= first_;
        first_ = 0;
        ring_.swap(larger);
        mask_ = ring_.size() - 1;
    }
    std::vector<Entry> ring_ = std::vector<Entry>(64);
    u64 mask_ = 63, first_ = 0, last_ = 0;
};

struct Nothing {};

// The pins of a wire port.
struct Pins {
    CData *rx_valid, *tx_credit, *tx_valid, *rx_credit;
    Beat *rx_beat, *tx_beat;
};

// Pins by port. Which a node has is in its Verilog, and so in its class.
template <typename Model, typename = void>
struct WirePorts {
    static constexpr u32 COUNT = 1;
    static Pins pins(Model& m, u32) { return {&m.rx_valid, &m.tx_credit, &m.tx_valid, &m.rx_credit, &m.rx_beat, &m.tx_beat}; }
};

template <typename Model>
struct WirePorts<Model, std::void_t<decltype(Model::rx_valid_1)>> {
    static constexpr u32 COUNT = 2;
    static Pins pins(Model& m, u32 port) {
        if (port == 0) return {&m.rx_valid, &m.tx_credit, &m.tx_valid, &m.rx_credit, &m.rx_beat, &m.tx_beat};
        return {&m.rx_valid_1, &m.tx_credit_1, &m.tx_valid_1, &m.rx_credit_1, &m.rx_beat_1, &m.tx_beat_1};
    }
};

constexpr u32 WIRE_PORTS = WirePorts<Vnode>::COUNT;

// A wire port of a node.
struct Port {
    Pins pins{};
    Timed<Beat> beats;       // arriving here
    Timed<Nothing> credits;  // coming back here
    Port* peer = nullptr;    // where the link from here ends
    u64 peer_cycles = 0;
    Port* source = nullptr;  // where the link that ends here begins
    u64 source_cycles = 0;
};

struct Node {
    std::unique_ptr<Vnode> model;
    u32 id = 0;
    u64 eval_due = 0;
    std::array<Port, WIRE_PORTS> ports;
    bool awake = false;  // for waveforms: evaluated in the last cycle because it was due
};

class Nodes final : public Models {
public:
    Nodes(Engine& engine, VerilatedContext* context) : engine_(engine), context_(context), nodes_(engine.nodes()) {
        for (u32 i = 0; i < engine.nodes(); ++i) {
            nodes_[i].id = i;
            nodes_[i].model = std::make_unique<Vnode>(context, ("n" + std::to_string(i)).c_str());
            for (u32 port = 0; port < WIRE_PORTS; ++port) nodes_[i].ports[port].pins = WirePorts<Vnode>::pins(*nodes_[i].model, port);
        }
    }

    u32 ports() const override { return WIRE_PORTS; }

    ~Nodes() override {
        trace_close();
        for (Node& node : nodes_) node.model->final();
    }

    void reset() override {
        for (const Link& link : engine_.links) {
            Port &from = nodes_[link.from].ports[link.from_port], &to = nodes_[link.to].ports[link.to_port];
            from.peer = &to;
            from.peer_cycles = link.cycles;
            to.source = &from;
            to.source_cycles = link.cycles;
        }
        for (Node& node : nodes_) {
            Vnode& model = *node.model;
            model.node_id = static_cast<u8>(node.id);
            model.now = 0;
            model.mailbox_due = 0;
            for (Port& port : node.ports) *port.pins.rx_valid = *port.pins.tx_credit = 0;
            for (u32 i = 0; i < 2 * RESET_CYCLES; ++i) {
                model.rst = i < RESET_CYCLES;
                model.clk = 0;
                model.eval();
                model.clk = 1;
                model.eval();
            }
        }
    }

    Stop run(u64 deadline) override {
        Engine& engine = engine_;
        while (true) {
            u64 next = engine.alarm_due();
            for (const Node& node : nodes_) next = std::min(next, due(node));
            if (next != NEVER && (!engine.skip || next < engine.now)) next = engine.now;
            if (engine.wakes_before(next > engine.limit ? NEVER : next)) {
                ++engine.visits;
                if (!engine.handler) return Stop::wake;
                do engine.handler(engine.shared->now, engine.take_wakes());
                while (engine.running && engine.has_wakes());
                if (!engine.running) return static_cast<Stop>(engine.shared->stop);
                continue;
            }
            if (next == NEVER) return Stop::deadlock;
            if (next > engine.limit) return Stop::limit;
            if (deadline != NEVER && deadline <= start_of(next)) return Stop::deadline;
            engine.now = next;
            cycle();
            engine.fire_alarms();
            engine.shared->now = engine.now++;
            if (!engine.running) return Stop::error;
        }
    }

    bool trace_open(const char* path, u64 first, u64 last, const char* names) override {
#if VM_TRACE
        waves_ = std::make_unique<Waves>(context_, path, first, last, names);
        return true;
#else
        (void)path, (void)first, (void)last, (void)names;
        return engine_.fail("the binary was built without waveforms");
#endif
    }

    void trace_close() override {
#if VM_TRACE
        if (!waves_ || waves_->done()) return;
        // What the last cycle left, so that its values have a width.
        if (waves_->started()) waves_->catch_up(engine_.now + 1);
        waves_->close();
#endif
    }

private:
    // Cycle c takes the time steps from (c + 1) * CYCLE_STEPS; time 0 belongs to the start of cocotb.
    static u64 start_of(u64 cycle) { return (cycle + 1) * CYCLE_STEPS; }

    u64 due(const Node& node) const {
        u64 due = std::min(node.eval_due, engine_.mail_due(node.id));
        for (const Port& port : node.ports) due = std::min({due, port.beats.due(), port.credits.due()});
        return due;
    }

    void cycle() {
#if VM_TRACE
        if (waves_ && !waves_->done()) return traced_cycle();
#endif
        for (Node& node : nodes_) {
            if (engine_.skip && due(node) > engine_.now) continue;
            low(node);
            high(node);
        }
    }

#if VM_TRACE
    // All nodes show one cycle at a time, so none may be ahead when the state is written. A node that goes to sleep is evaluated
    // once more, as without skipping: what it did last is over then, and its inputs are idle.
    void traced_cycle() {
        const u64 now = engine_.now;
        settle(now);
        active_.clear();
        for (Node& node : nodes_) {
            const bool due_now = !engine_.skip || due(node) <= now;
            if (due_now || node.awake) active_.push_back(&node);
            node.awake = due_now;
        }
        show(now);
    }

    // Before cycle `now`: what has held since the last one.
    void settle(u64 now) {
        const u64 next = waves_->next();
        active_.clear();
        for (Node& node : nodes_)
            if (next < now && node.awake) {
                active_.push_back(&node);
                node.awake = false;
            }
        if (!active_.empty()) {
            engine_.now = next;
            show(next);
            engine_.now = now;
            waves_->evaluated(next);
        }
        waves_->catch_up(now);
    }

    // One cycle of the nodes in `active_`. Those that sleep are not counted.
    void show(u64 now) {
        const u64 counted = engine_.evaluated;
        for (Node* node : active_) low(*node);
        if (waves_->covers(now)) waves_->write(now);
        for (Node* node : active_) high(*node);
        engine_.evaluated = counted + std::count_if(active_.begin(), active_.end(), [](Node* node) { return node->awake; });
    }
#endif

    void low(Node& node) {
        Vnode& model = *node.model;
        const u64 now = engine_.now;
        model.clk = 0;
        model.now = now;
        u8 mail = 0;
        if (engine_.mail_due(node.id) <= now)
            for (u32 port = 0; port < PORTS; ++port) mail |= static_cast<u8>((engine_.mailbox(node.id, port).due() <= now) << port);
        model.mailbox_due = mail;
        for (Port& port : node.ports) arrive(port, now);
        model.eval();
    }

    void high(Node& node) {
        Vnode& model = *node.model;
        const u64 now = engine_.now;
        model.clk = 1;
        model.eval();
        ++engine_.evaluated;
        for (Port& port : node.ports) depart(node, port, now);
        if (!model.quiet)
            node.eval_due = now + 1;
        else if (model.next_due == NO_CYCLE)
            node.eval_due = NEVER;
        else
            node.eval_due = std::max<u64>(model.next_due, now + 1);
    }

    static void arrive(Port& port, u64 now) {
        const Pins& pins = port.pins;
        *pins.rx_valid = port.beats.due() <= now;
        if (*pins.rx_valid) {
            *pins.rx_beat = port.beats.front();
            port.beats.pop();
        }
        *pins.tx_credit = port.credits.due() <= now;
        if (*pins.tx_credit) port.credits.pop();
    }

    void depart(const Node& node, const Port& port, u64 now) {
        const Pins& pins = port.pins;
        if (*pins.tx_valid) {
            if (engine_.tapping) engine_.tap(now, node.id, pins.tx_beat, sizeof(Beat));
            if (port.peer)
                port.peer->beats.push(now + port.peer_cycles, *pins.tx_beat);
            else
                no_link(node, port, "sends a beat, but no link leaves it");
        }
        if (*pins.rx_credit) {
            if (port.source)
                port.source->credits.push(now + port.source_cycles, {});
            else
                no_link(node, port, "returns a credit, but no link enters it");
        }
    }

    void no_link(const Node& node, const Port& port, const char* what) {
        engine_.fail("port " + std::to_string(&port - node.ports.data()) + " of node " + std::to_string(node.id) + " " + what +
                     " (cycle " + std::to_string(engine_.now) + ")");
        engine_.stop(Stop::error);
    }

    Engine& engine_;
    VerilatedContext* context_;
    std::vector<Node> nodes_;
#if VM_TRACE
    std::unique_ptr<Waves> waves_;
    std::vector<Node*> active_;
#endif
};

}  // namespace

Models* make_models(Engine& engine, void* context) { return new Nodes(engine, static_cast<VerilatedContext*>(context)); }

}  // namespace bellwire
