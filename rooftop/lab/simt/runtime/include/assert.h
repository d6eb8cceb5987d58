// No include guard: as the standard has it, NDEBUG counts anew each time. The macro is simt.h's.
#undef assert
#ifdef NDEBUG
#define assert(...) (static_cast<void>(0))
#else
#define assert(...) SIMT_ASSERT(__VA_ARGS__)
#endif
