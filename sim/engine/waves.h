// The waveform file of a run: which cycles, which signals, and when the state is written.
//
// The time of the file is the cycle. What stands at time c is what the clock edge of cycle c samples, so one sample per cycle says
// it all, and no clock is needed. A pause of all nodes is a gap in which nothing changes.
#pragma once

#include <algorithm>
#include <string>

#include "engine.h"
#include "verilated.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using WaveFile = VerilatedFstC;
#elif VM_TRACE_VCD
#include "verilated_vcd_c.h"
using WaveFile = VerilatedVcdC;
#endif

namespace bellwire {

#if VM_TRACE
class Waves {
public:
    // `names`: signals, or scopes with all below them, one a line; none: everything.
    Waves(VerilatedContext* context, const std::string& path, u64 first, u64 last, const std::string& names)
        : path_(path), first_(first), last_(last) {
        context->trace(&file_, 99);
        file_.set_time_unit("1ns");
        file_.set_time_resolution("1ns");
        for (size_t start = 0; start < names.size();) {
            const size_t end = std::min(names.find('\n', start), names.size());
            if (end > start) file_.dumpvars(99, names.substr(start, end - start));
            start = end + 1;
        }
    }

    bool covers(u64 cycle) const { return !done_ && first_ <= cycle && cycle <= last_; }
    // The first cycle that has not been evaluated.
    u64 next() const { return next_; }
    void evaluated(u64 cycle) { next_ = cycle + 1; }
    // Before the nodes are evaluated for cycle `now`: writes what has held since `next()`.
    void catch_up(u64 now) {
        const u64 start = std::max(next_, first_);
        if (start < now && start <= last_) write(start);
        next_ = now + 1;
        if (now <= last_) return;
        // The file ends where the window does, though nothing may have changed for long.
        if (started() && written_ < last_) write(last_);
        close();
    }
    // The state of `cycle`. The file is made by the first.
    void write(u64 cycle) {
        if (!file_.isOpen()) file_.open(path_.c_str());
        file_.dump(cycle);
        written_ = cycle;
    }
    void close() {
        if (file_.isOpen()) file_.close();
        done_ = true;
    }
    bool started() const { return file_.isOpen(); }
    bool done() const { return done_; }

private:
    WaveFile file_;
    std::string path_;
    u64 first_, last_;
    u64 next_ = 0;
    u64 written_ = 0;
    bool done_ = false;
};
#endif

}  // namespace bellwire
