// What all modes share of the engine, in one piece: the compiler reads its headers once.
#include "engine.cpp"   // first: the switch of fibers is assembled into it
#include "faults.cpp"
#include "mbarrier.cpp"
#include "meeting.cpp"
#include "memory.cpp"
#include "convert.cpp"
