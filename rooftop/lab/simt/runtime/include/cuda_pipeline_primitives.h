#pragma once
SIMT_INLINE void __pipeline_memcpy_async(void* __restrict__ to, const void* __restrict__ from, size_t bytes, size_t zeros = 0) {
    simt::copy_async(to, from, static_cast<unsigned>(bytes), static_cast<unsigned>(bytes - zeros));
}
SIMT_INLINE void __pipeline_commit() { simt::copy_commit(); }
SIMT_INLINE void __pipeline_wait_prior(size_t groups) { simt::copy_wait(static_cast<unsigned>(groups)); }
