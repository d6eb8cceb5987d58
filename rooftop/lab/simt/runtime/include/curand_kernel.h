// cuRAND in kernels: other numbers than cuRAND's, of the same distributions; `inspect` compiles it too (own_file). A state is 8 bytes of a
// counter and 8 of a key.
#pragma once
struct curandStateXORWOW { unsigned long long counter, key; float spare; int has_spare; };
typedef curandStateXORWOW curandState, curandState_t, curandStateXORWOW_t, curandStatePhilox4_32_10, curandStatePhilox4_32_10_t,
    curandStateMRG32k3a, curandStateMRG32k3a_t;
SIMT_INLINE void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, curandState* s) {
    s->counter = offset, s->key = seed * 0x9e3779b97f4a7c15u + sequence * 0xd1342543de82ef95u, s->spare = 0, s->has_spare = 0; }
SIMT_INLINE unsigned curand(curandState* s) {
    unsigned long long v = s->key + ++s->counter * 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return static_cast<unsigned>((v ^ v >> 31) >> 16);
}
SIMT_INLINE float curand_uniform(curandState* s) { return (static_cast<float>(curand(s) >> 8) + 1.0f) / 16777216.0f; }
SIMT_INLINE double curand_uniform_double(curandState* s) { const double high = curand(s);
    return (high * 4294967296.0 + curand(s) + 1.0) / 18446744073709551616.0; }
SIMT_INLINE float curand_normal(curandState* s) {
    if (s->has_spare) { s->has_spare = 0; return s->spare; }
    const float r = sqrtf(-2.0f * logf(curand_uniform(s))), a = 6.2831853f * curand_uniform(s);
    s->spare = r * sinf(a), s->has_spare = 1;
    return r * cosf(a);
}
SIMT_INLINE double curand_normal_double(curandState* s) { return curand_normal(s); }
SIMT_INLINE float2 curand_normal2(curandState* s) { const float x = curand_normal(s); return {x, curand_normal(s)}; }
SIMT_INLINE float4 curand_uniform4(curandState* s) { const float x = curand_uniform(s), y = curand_uniform(s), z = curand_uniform(s);
    return {x, y, z, curand_uniform(s)}; }
SIMT_INLINE float4 curand_normal4(curandState* s) { const float x = curand_normal(s), y = curand_normal(s), z = curand_normal(s);
    return {x, y, z, curand_normal(s)}; }
SIMT_INLINE uint4 curand4(curandState* s) { const unsigned x = curand(s), y = curand(s), z = curand(s); return {x, y, z, curand(s)}; }
SIMT_INLINE float curand_log_normal(curandState* s, float mean, float sd) { return expf(mean + sd * curand_normal(s)); }
SIMT_INLINE void skipahead(unsigned long long n, curandState* s) { s->counter += n; }
