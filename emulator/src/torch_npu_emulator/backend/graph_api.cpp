// What Python captures and replays graphs with.
#include <torch/custom_class.h>
#include <torch/library.h>

#include "capture.h"
#include "faults.h"
#include "replay.h"
#include "streams.h"
#include "tape.h"
#include "task_update.h"

namespace npu_emulator {
namespace {

class Graph final : public torch::CustomClassHolder {
 public:
  ~Graph() override {
    if (capturing_) abort_capture();
  }

  void capture_begin(int64_t pool, int64_t stream) {
    TORCH_CHECK(!tape_, "NPUGraph.capture_begin: this graph was captured before; reset() it, or make a new one");
    begin_capture(pool, stream);
    capturing_ = true;
  }
  void capture_end() {
    TORCH_CHECK(capturing_, "NPUGraph.capture_end without capture_begin");
    capturing_ = false;
    tape_ = end_capture();
  }
  void capture_abort() {
    if (capturing_) abort_capture();
    capturing_ = false;
  }
  void replay(int64_t stream) {
    TORCH_CHECK(tape_, "NPUGraph.replay: nothing was captured");
    TORCH_CHECK(!capturing(), "NPUGraph.replay while a graph is captured");
    npu_emulator::replay(tape_, stream);
  }
  void reset() {
    TORCH_CHECK(!capturing_, "NPUGraph.reset while it is captured");
    tape_.reset();
  }
  std::vector<std::string> nodes() const {
    std::vector<std::string> names;
    if (tape_) {
      for (const auto& node : tape_->nodes) names.push_back(node.name);
    }
    return names;
  }

 private:
  std::shared_ptr<Tape> tape_;
  bool capturing_ = false;
};

// A launch that is no operator: Python's function `number` is called at every replay.
void capture_call(const std::string& name, int64_t number) {
  static const auto call = c10::Dispatcher::singleton().findSchemaOrThrow("npu_emulator::call", "");
  Node node{Node::Kind::kOperator, name};
  node.op = call;
  node.key = c10::DispatchKey::CPU;
  node.arguments = {number};
  capture_node(std::move(node));
}

}  // namespace
}  // namespace npu_emulator

TORCH_LIBRARY_FRAGMENT(npu_emulator, m) {
  using namespace npu_emulator;
  m.class_<Graph>("Graph")
      .def(torch::init<>())
      .def("capture_begin", &Graph::capture_begin)
      .def("capture_end", &Graph::capture_end)
      .def("capture_abort", &Graph::capture_abort)
      .def("replay", &Graph::replay)
      .def("reset", &Graph::reset)
      .def("nodes", &Graph::nodes);
  m.class_<TaskGroup>("TaskGroup");
  m.class_<ExternalEvent>("ExternalEvent")
      .def(torch::init<>())
      .def("record", &ExternalEvent::record)
      .def("wait", &ExternalEvent::wait)
      .def("reset", &ExternalEvent::reset);
  m.class_<StreamEvent>("StreamEvent")
      .def(torch::init<>())
      .def("record", &StreamEvent::record)
      .def("wait", &StreamEvent::wait)
      .def("query", &StreamEvent::query)
      .def("synchronize", &StreamEvent::synchronize);
  m.def("weak_reference(Tensor tensor) -> Tensor");
  m.def("begin_task_group(int stream) -> ()", &begin_task_group);
  m.def("end_task_group(int stream) -> __torch__.torch.classes.npu_emulator.TaskGroup", &end_task_group);
  m.def("begin_task_update(int stream, __torch__.torch.classes.npu_emulator.TaskGroup group) -> ()", &begin_task_update);
  m.def("end_task_update(int stream) -> ()", &end_task_update);
  m.def("synchronize_stream(int stream, str what) -> ()",
        [](int64_t stream, const std::string& what) { wait_for_stream(stream, what); });
  m.def("synchronize_device(str what) -> ()", [](const std::string& what) { wait_for_device(what); });
  m.def("require_running(int stream, str what) -> ()",
        [](int64_t stream, const std::string& what) { require_running(stream, what); });
  m.def("call(int number) -> ()");  // implemented in Python
  m.def("capture_call(str name, int number) -> ()", &capture_call);
}

TORCH_LIBRARY_IMPL(npu_emulator, PrivateUse1, m) { m.impl("weak_reference", &npu_emulator::weak_reference); }

extern "C" {

int npu_emulator_replaying() { return npu_emulator::replaying > 0; }
int npu_emulator_capturing() { return npu_emulator::capturing(); }
void npu_emulator_set_stream(int64_t stream, int64_t device) { npu_emulator::set_current_stream(stream, device); }
void npu_emulator_trace_poison(int on) { npu_emulator::trace_poison = on != 0; }
void npu_emulator_set_faults(int faults) { npu_emulator::active_faults = faults; }

}  // extern "C"
