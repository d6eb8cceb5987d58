// prints: 12
#include <cstdio>
#include "two_files.cuh"
int main() { printf("%d\n", twice_on_device(6)); }
