#pragma once  // all of it is in simt.h
