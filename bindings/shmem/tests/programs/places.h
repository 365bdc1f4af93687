/* Places of type T for the sweep, and checks of what is there. */
enum { N = 17, PLACE = 1 << 13 };

#define DONE shmem_barrier_all()
#define PLACES                                                                                    \
    T *S = (T *)memory, *D = (T *)(memory + PLACE), *WORK = (T *)(memory + 2 * PLACE);            \
    for (int i = 0; i < 64; i++) {                                                                \
        S[i] = (T)(me + i);                                                                       \
        D[i] = (T)0;                                                                              \
    }                                                                                             \
    *W = 0;                                                                                       \
    (void)S, (void)D, (void)WORK;                                                                 \
    DONE
#define ALL(place, count, value) STRIDED(place, 1, count, value)
#define STRIDED(place, stride, count, value)                                                      \
    for (int i = 0; i < (count); i++)                                                             \
    check((place)[i * (stride)] == (T)(value))
#define BLOCKS(place, dst, sst, first)                                                            \
    for (int i = 0; i < 6; i++)                                                                   \
    check((place)[i / 2 * (dst) + i % 2] == (T)((first) + i / 2 * (sst) + i % 2))
#define SUMS ALL(D, N, n * (n - 1) / 2 + n * i)
#define PRODUCTS                                                                                  \
    for (int i = 0; i < 2; i++) {                                                                 \
        T product = (T)1;                                                                         \
        for (int r = 0; r < n; r++)                                                               \
            product *= (T)(r + i);                                                                \
        check(D[i] == product);                                                                   \
    }
#define BITS(operator)                                                                            \
    for (int i = 0; i < N; i++) {                                                                 \
        T bits = (T)i;                                                                            \
        for (int r = 1; r < n; r++)                                                               \
            bits = (T)(bits operator(T)(r + i));                                                  \
        check(D[i] == bits);                                                                      \
    }
