// Elements that are copied as they are: a type of as many bytes.
#pragma once

template <int BYTES>
struct Raw;
template <>
struct Raw<1> { using type = unsigned char; };
template <>
struct Raw<2> { using type = unsigned short; };
template <>
struct Raw<4> { using type = unsigned; };
template <>
struct Raw<8> { using type = uint2; };
template <int BYTES>
using raw = typename Raw<BYTES>::type;
