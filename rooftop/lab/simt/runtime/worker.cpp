// Which worker a thread of the host is: a library of its own, which all simulations share. What a program keeps for each thread and finds
// fast is small, and a library cannot give its part back: hundreds of simulations in one process would not have room.
namespace simt {
struct Worker;
extern __thread Worker* worker __attribute__((tls_model("initial-exec"), visibility("default")));
__thread Worker* worker = nullptr;
}  // namespace simt
