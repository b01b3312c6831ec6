// Entry point. Without `--replay`: cocotb attaches to `bench` and Python drives. With it: a recording is run without Python.
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "Vbench.h"
#include "engine.h"
#include "verilated.h"
#include "verilated_vpi.h"

extern "C" void vlog_startup_routines_bootstrap();

namespace {

using namespace bellwire;

enum Exit { OK = 0, NO_PYTHON = 3, LIMIT = 5, DEADLOCK = 6, ENGINE_ERROR = 7 };

const char* option(int argc, char** argv, const char* name) {
    for (int i = 1; i + 1 < argc; ++i)
        if (!std::strcmp(argv[i], name)) return argv[i + 1];
    return nullptr;
}

bool value_callbacks() {
    bool any = false;
    while (VerilatedVpi::callValueCbs()) any = true;
    return any;
}

// All phases of one time step of the simulator interface.
void phases(Vbench& bench) {
    do {
        do {
            bench.eval();
            VerilatedVpi::clearEvalNeeded();
            VerilatedVpi::doInertialPuts();
            value_callbacks();
        } while (VerilatedVpi::evalNeeded());
        VerilatedVpi::callCbs(cbReadWriteSynch);
        VerilatedVpi::doInertialPuts();
        value_callbacks();
    } while (VerilatedVpi::evalNeeded());
    VerilatedVpi::callCbs(cbReadOnlySynch);
}

// The loop leaves the nodes only for Python (a wake without handler, a stop) or for a timed callback of the interface.
int drive(VerilatedContext& context, Vbench& bench, Engine& engine) {
    vlog_startup_routines_bootstrap();
    if (!VerilatedVpi::hasCbs(cbStartOfSimulation)) {
        std::fprintf(stderr, "engine: Python did not start (see the lines above)\n");
        return NO_PYTHON;
    }
    VerilatedVpi::callCbs(cbStartOfSimulation);
    value_callbacks();
    int stopped = OK;
    while (!context.gotFinish()) {
        phases(bench);
        if (context.gotFinish()) break;
        const u64 deadline = VerilatedVpi::cbNextDeadline();
        if (engine.running) {
            // A stop is reported once. Python then ends the test; if it does not, nothing will ever happen again.
            const Stop why = engine.models->run(deadline);
            if (why == Stop::deadline) {
                context.time(std::max<u64>(deadline, context.time()));
            } else {
                context.time(std::max<u64>(engine.now * CYCLE_STEPS + CYCLE_STEPS / 2, context.time()));
                if (why != Stop::wake) engine.stop(why);
                if (why == Stop::deadlock) stopped = DEADLOCK;
                if (why == Stop::limit) stopped = LIMIT;
                if (why == Stop::error) stopped = ENGINE_ERROR;
                bench.wake = !bench.wake;
                continue;
            }
        } else if (deadline == NEVER) {
            break;  // nobody waits for time, nothing runs
        } else {
            context.time(std::max<u64>(deadline, context.time()));
        }
        VerilatedVpi::callCbs(cbNextSimTime);
        value_callbacks();
        VerilatedVpi::callTimedCbs();
        value_callbacks();
    }
    const bool finished = context.gotFinish();
    VerilatedVpi::callCbs(cbEndOfSimulation);
    return finished ? OK : stopped ? stopped : NO_PYTHON;
}

int replay(Engine& engine, const char* path, bool skip, const char* events_path) {
    engine.replaying = true;
    if (!engine.load(path)) {
        std::fprintf(stderr, "engine: %s\n", engine.shared->error);
        return 2;
    }
    engine.start(engine.end, skip, false);
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t busy = std::clock();
    const Stop why = engine.end == NEVER ? Stop::limit : engine.models->run(NEVER);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    const double cpu_s = static_cast<double>(std::clock() - busy) / CLOCKS_PER_SEC;
    if (why == Stop::error) {
        std::fprintf(stderr, "engine: %s\n", engine.shared->error);
        return ENGINE_ERROR;
    }
    const std::string hash = engine.events_sha256();
    const u64 cycles = engine.end == NEVER ? 0 : engine.end + 1;
    std::printf("{\"cycles\": %llu, \"node_cycles\": %llu, \"wall_s\": %.6f, \"cpu_s\": %.6f, \"cycles_per_s\": %.0f, \"events\": %llu, "
                "\"event_log_sha256\": \"%s\"}\n",
                static_cast<unsigned long long>(cycles), static_cast<unsigned long long>(engine.evaluated), wall.count(), cpu_s,
                static_cast<double>(cycles) / std::max(wall.count(), 1e-9), static_cast<unsigned long long>(engine.events.size()),
                hash.c_str());
    if (events_path) {
        std::FILE* file = std::fopen(events_path, "wb");
        if (!file || std::fwrite(engine.events.data(), sizeof(Event), engine.events.size(), file) != engine.events.size()) {
            std::fprintf(stderr, "engine: cannot write %s\n", events_path);
            return 2;
        }
        std::fclose(file);
    }
    return OK;
}

}  // namespace

// --nodes N [--replay FILE [--no-skip] [--events FILE]]
int main(int argc, char** argv) {
    const char* nodes_text = option(argc, argv, "--nodes");
    const u64 count = nodes_text ? std::strtoull(nodes_text, nullptr, 10) : 2;
    if (count < 1 || count > MAX_NODES) {
        std::fprintf(stderr, "engine: --nodes %s: allowed 1 to %llu\n", nodes_text, static_cast<unsigned long long>(MAX_NODES));
        return 2;
    }
    VerilatedContext context;
    Verilated::threadContextp(&context);
    context.commandArgs(argc, argv);
#if VM_TRACE
    context.traceEverOn(true);
#endif
    context.fatalOnVpiError(false);  // cocotb asks for things that Verilator does not have
    Vbench bench(&context, "");
    Engine engine(static_cast<u32>(count));
    const std::unique_ptr<Models> models(make_models(engine, &context));
    Verilated::threadContextp(&context);
    engine.models = models.get();

    int code;
    if (const char* path = option(argc, argv, "--replay")) {
        bool skip = true;
        for (int i = 1; i < argc; ++i) skip = skip && std::strcmp(argv[i], "--no-skip");
        code = replay(engine, path, skip, option(argc, argv, "--events"));
    } else {
        code = drive(context, bench, engine);
    }
    bench.final();
    return code == OK && context.errorCount() ? 1 : code;
}
