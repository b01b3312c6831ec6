// The Verilated nodes and the lock-step clock loop (decision 2). The only file that includes the generated model.
#include <algorithm>
#include <memory>
#include <vector>

#include "Vnode.h"
#include "engine.h"
#include "verilated.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Waves = VerilatedFstC;
#elif VM_TRACE_VCD
#include "verilated_vcd_c.h"
using Waves = VerilatedVcdC;
#endif

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

struct Node {
    std::unique_ptr<Vnode> model;
    u32 id = 0;
    u64 eval_due = 0;
    Timed<Beat> beats;       // arriving here
    Timed<Nothing> credits;  // coming back here
    Node* peer = nullptr;    // where this node's link ends
    u64 peer_cycles = 0;
    Node* source = nullptr;  // where the link that ends here begins
    u64 source_cycles = 0;
};

class Nodes final : public Models {
public:
    Nodes(Engine& engine, VerilatedContext* context) : engine_(engine), context_(context), nodes_(engine.nodes()) {
        for (u32 i = 0; i < engine.nodes(); ++i) {
            nodes_[i].id = i;
            nodes_[i].model = std::make_unique<Vnode>(context, ("n" + std::to_string(i)).c_str());
        }
    }

    ~Nodes() override {
        trace_close();
        for (Node& node : nodes_) node.model->final();
    }

    void reset() override {
        for (const Link& link : engine_.links) {
            Node &from = nodes_[link.from], &to = nodes_[link.to];
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
            model.rx_valid = 0;
            model.tx_credit = 0;
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
            if (next == NEVER) return Stop::deadlock;
            if (!engine.skip || next < engine.now) next = engine.now;
            if (next > engine.limit) return Stop::limit;
            if (deadline != NEVER && deadline <= start_of(next)) return Stop::deadline;
            engine.now = next;
            cycle();
            engine.fire_alarms();
            engine.shared->now = engine.now++;
            if (!engine.running) return Stop::error;
            if (engine.has_wakes()) {
                ++engine.visits;
                if (!engine.handler) return Stop::wake;
                do engine.handler(engine.shared->now, engine.take_wakes());
                while (engine.running && engine.has_wakes());
                if (!engine.running) return static_cast<Stop>(engine.shared->stop);
            }
        }
    }

    bool trace_open(const char* path) override {
#if VM_TRACE
        trace_close();
        waves_ = std::make_unique<Waves>();
        context_->trace(waves_.get(), 99);
        waves_->open(path);
        return waves_->isOpen() || engine_.fail(std::string("cannot write ") + path);
#else
        (void)path;
        return engine_.fail("the binary was built without waveforms");
#endif
    }

    void trace_close() override {
#if VM_TRACE
        if (waves_) waves_->close();
        waves_.reset();
#endif
    }

private:
    // Cycle c takes the time steps from (c + 1) * CYCLE_STEPS; time 0 belongs to the start of cocotb.
    static u64 start_of(u64 cycle) { return (cycle + 1) * CYCLE_STEPS; }

    u64 due(const Node& node) const {
        return std::min(std::min(node.eval_due, engine_.mail_due(node.id)), std::min(node.beats.due(), node.credits.due()));
    }

    void cycle() {
#if VM_TRACE
        if (waves_) return traced_cycle();
#endif
        for (Node& node : nodes_) {
            if (engine_.skip && due(node) > engine_.now) continue;
            low(node);
            high(node);
        }
    }

    // Waveforms want both halves of the clock of all nodes at one time.
    void traced_cycle() {
#if VM_TRACE
        active_.clear();
        for (Node& node : nodes_)
            if (!engine_.skip || due(node) <= engine_.now) active_.push_back(&node);
        for (Node* node : active_) low(*node);
        waves_->dump(start_of(engine_.now));
        for (Node* node : active_) high(*node);
        waves_->dump(start_of(engine_.now) + CYCLE_STEPS / 2);
#endif
    }

    void low(Node& node) {
        Vnode& model = *node.model;
        const u64 now = engine_.now;
        model.clk = 0;
        model.now = now;
        u8 mail = 0;
        if (engine_.mail_due(node.id) <= now)
            for (u32 port = 0; port < PORTS; ++port) mail |= static_cast<u8>((engine_.mailbox(node.id, port).due() <= now) << port);
        model.mailbox_due = mail;
        model.rx_valid = node.beats.due() <= now;
        if (model.rx_valid) {
            model.rx_beat = node.beats.front();
            node.beats.pop();
        }
        model.tx_credit = node.credits.due() <= now;
        if (model.tx_credit) node.credits.pop();
        model.eval();
    }

    void high(Node& node) {
        Vnode& model = *node.model;
        const u64 now = engine_.now;
        model.clk = 1;
        model.eval();
        ++engine_.evaluated;
        if (model.tx_valid) {
            if (node.peer)
                node.peer->beats.push(now + node.peer_cycles, model.tx_beat);
            else
                no_link(node, "sends a beat, but no link leaves it");
        }
        if (model.rx_credit) {
            if (node.source)
                node.source->credits.push(now + node.source_cycles, {});
            else
                no_link(node, "returns a credit, but no link enters it");
        }
        if (!model.quiet)
            node.eval_due = now + 1;
        else if (model.next_due == NO_CYCLE)
            node.eval_due = NEVER;
        else
            node.eval_due = std::max<u64>(model.next_due, now + 1);
    }

    void no_link(const Node& node, const char* what) {
        engine_.fail("node " + std::to_string(node.id) + " " + what + " (cycle " + std::to_string(engine_.now) + ")");
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
