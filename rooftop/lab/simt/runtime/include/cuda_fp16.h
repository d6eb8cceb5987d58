#pragma once  // the types themselves are in simt.h
typedef __half half;
typedef __half2 half2;
