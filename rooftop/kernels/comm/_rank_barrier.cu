/* The ranks of a group meet between launches: what each wrote before into its peers' memory is seen by their launches after. They fulfil no op;
rooftop/ranks/products.py places them between products whose tiles are stored into the peers' memory. One block of few registers, so that it finds room beside a
product that holds a multiprocessor. */
#include "_ranks.cuh"

__global__ void __launch_bounds__(32)
meeting(int ranks, int rank, const unsigned long long* table, unsigned* epochs, int* fault, unsigned call, long long patience) {
    const Rooms<false> rooms{nullptr, table, 0};
    const unsigned number = epochs[0] + 1;
    meet(rooms, rank, ranks, number, call, false, patience, fault);
    if (threadIdx.x == 0) epochs[0] = number;
}
