// What NVIDIA's samples keep in their folder Common, which files are copied from without it: checks of errors, timers, arguments. In a few
// lines of our own.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
template <class E>
inline void simt_checked(E e, const char* call, const char* file, int line) {
    if (e == static_cast<E>(0)) return;
    fprintf(stderr, "error %d at %s:%d: %s\n", static_cast<int>(e), file, line, call);
    exit(EXIT_FAILURE);
}
#define checkCudaErrors(value) simt_checked((value), #value, __FILE__, __LINE__)
#define getLastCudaError(text) simt_checked(cudaGetLastError(), text, __FILE__, __LINE__)
#define printLastCudaError(text) getLastCudaError(text)
#ifndef MAX
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#endif
#ifndef MIN
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#endif
inline int gpuGetMaxGflopsDeviceId() { return 0; }
inline int gpuDeviceInit(int device) { return device; }
inline int findCudaDevice(int, const char**) { return 0; }
inline int _ConvertSMVer2Cores(int, int) { return 128; }
inline const char* _cudaGetErrorEnum(cudaError_t e) { return cudaGetErrorString(e); }

struct StopWatchInterface {                                      // milliseconds
    std::chrono::steady_clock::time_point began;
    float total = 0;
    int sessions = 0;
};
inline bool sdkCreateTimer(StopWatchInterface** t) { *t = new StopWatchInterface; return true; }
inline bool sdkDeleteTimer(StopWatchInterface** t) { delete *t; *t = nullptr; return true; }
inline bool sdkStartTimer(StopWatchInterface** t) { (*t)->began = std::chrono::steady_clock::now(); return true; }
inline bool sdkStopTimer(StopWatchInterface** t) { (*t)->total += std::chrono::duration<float,
    std::milli>(std::chrono::steady_clock::now() - (*t)->began).count(), ++(*t)->sessions; return true; }
inline bool sdkResetTimer(StopWatchInterface** t) { (*t)->total = 0, (*t)->sessions = 0; return sdkStartTimer(t); }
inline float sdkGetTimerValue(StopWatchInterface** t) { return (*t)->total; }
inline float sdkGetAverageTimerValue(StopWatchInterface** t) { return (*t)->sessions ? (*t)->total / static_cast<float>((*t)->sessions) : 0;
    }

// what follows `-name`, behind `=` if there is one; null where it is not given
inline const char* simt_argument(int argc, const char** argv, const char* name) {
    for (int i = 1; i < argc; ++i) {
        const char* a = argv[i] + std::strspn(argv[i], "-");
        const size_t n = std::strlen(name);
        if (a != argv[i] && !std::strncmp(a, name, n) && (!a[n] || a[n] == '=')) return a + n + (a[n] == '=');
    }
    return nullptr;
}
inline bool checkCmdLineFlag(int argc, const char** argv, const char* name) { return simt_argument(argc, argv, name) != nullptr; }
inline int getCmdLineArgumentInt(int argc, const char** argv, const char* name) { const char* a = simt_argument(argc, argv, name); return a
    ? atoi(a) : 0; }
inline float getCmdLineArgumentFloat(int argc, const char** argv, const char* name) { const char* a = simt_argument(argc, argv, name);
    return a ? static_cast<float>(atof(a)) : 0; }
inline bool getCmdLineArgumentString(int argc, const char** argv, const char* name, char** to) {
    const char* a = simt_argument(argc, argv, name); *to = const_cast<char*>(a); return a != nullptr; }
inline bool sdkCompareL2fe(const float* reference, const float* data, unsigned n, float epsilon) {
    double error = 0, all = 0;
    for (unsigned i = 0; i < n; ++i) error += std::pow(double(reference[i]) - data[i], 2), all += std::pow(double(reference[i]), 2);
    return all > 0 && std::sqrt(error / all) < epsilon;
}
