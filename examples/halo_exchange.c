/* Heat spreads over a plate. Each PE owns a block of it, in a grid of PEs. At every step it puts its
   edges straight into the memory of its neighbours, which never ask for data. The same is done by an
   alltoall, and both times are told. Each PE compares its block, bit for bit, with the whole plate
   computed by itself.

   cc -O2 halo_exchange.c -o halo_exchange $(pkg-config --cflags --libs shmccl-shmem)
   shmccl run -n 4 -- ./halo_exchange

   There may be up to 240 PEs. */

#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 240, STEPS = 60 };

/* A block of the plate within a border of one cell: the edges of its neighbours, or the border of the
   plate, which is hot above and cold elsewhere. */
typedef struct {
    int height, width;
    double cells[(SIZE + 2) * (SIZE + 2)], old[(SIZE + 2) * (SIZE + 2)];
} Block;

/* Along a side: above, below, left, right. The border is at depth 0, the block's own edge at 1. */
typedef struct {
    int first, stride, len;
} Line;

static Block block, plate;

/* What neighbours put: one edge for each side, twice, since a neighbour may be in its next step while
   this PE still reads what came in this one. Behind each a word has the number of the step. */
static double edges[2][4][SIZE];
static uint64_t arrived[4];

static double *sent, *received;
static int neighbour_at[4];

static void begin(Block *of, int first_row, int rows, int first_column, int columns)
{
    *of = (Block){.height = rows, .width = columns};
    for (int x = 0; first_row == 0 && x < columns; x++)
        of->cells[1 + x] = (first_column + x) % 7 * 10.0;
}

/* Every cell becomes the mean of its four neighbours. */
static void step(Block *of)
{
    int across = of->width + 2;
    memcpy(of->old, of->cells, (size_t)across * (of->height + 2) * sizeof(double));
    for (int y = 1; y <= of->height; y++)
        for (int at = y * across + 1; at <= y * across + of->width; at++)
            of->cells[at] =
                0.25 * (of->old[at - across] + of->old[at + across] + of->old[at - 1] + of->old[at + 1]);
}

static Line line(const Block *of, int side, int depth)
{
    int height = of->height, width = of->width, across = width + 2;
    switch (side) {
    case 0: return (Line){depth * across + 1, 1, width};
    case 1: return (Line){(height + 1 - depth) * across + 1, 1, width};
    case 2: return (Line){across + depth, across, height};
    default: return (Line){across + width + 1 - depth, across, height};
    }
}

/* Copies an edge of the block, and returns its length. */
static size_t get_edge(int side, double *edge)
{
    Line from = line(&block, side, 1);
    for (int i = 0; i < from.len; i++)
        edge[i] = block.cells[from.first + i * from.stride];
    return from.len;
}

static void set_border(int side, const double *edge)
{
    Line to = line(&block, side, 0);
    for (int i = 0; i < to.len; i++)
        block.cells[to.first + i * to.stride] = edge[i];
}

static void exchange_by_puts(uint64_t turn)
{
    for (int side = 0; side < 4; side++) {
        double edge[SIZE];
        int its_side = side ^ 1;
        if (neighbour_at[side] >= 0)
            shmem_double_put_signal(edges[turn % 2][its_side], edge, get_edge(side, edge), &arrived[its_side], turn,
                                    SHMEM_SIGNAL_SET, neighbour_at[side]);
    }
    for (int side = 0; side < 4; side++) {
        if (neighbour_at[side] >= 0) {
            shmem_signal_wait_until(&arrived[side], SHMEM_CMP_GE, turn);
            set_border(side, edges[turn % 2][side]);
        }
    }
}

/* A place for each PE, of which most stay unused; twice where data come in, for the same reason. */
static void exchange_by_collective(uint64_t turn)
{
    double *came = received + turn % 2 * shmem_n_pes() * SIZE;
    for (int side = 0; side < 4; side++)
        if (neighbour_at[side] >= 0)
            get_edge(side, sent + neighbour_at[side] * SIZE);
    shmem_double_alltoall(SHMEM_TEAM_WORLD, came, sent, SIZE);
    for (int side = 0; side < 4; side++)
        if (neighbour_at[side] >= 0)
            set_border(side, came + neighbour_at[side] * SIZE);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), n_pes = shmem_n_pes(), down = 1;
    if (n_pes > SIZE) {
        if (me == 0)
            fprintf(stderr, "%d PEs, at most %d, so that each has a column of cells\n", n_pes, SIZE);
        shmem_finalize();
        return 1;
    }
    for (int i = 1; i * i <= n_pes; i++)
        if (n_pes % i == 0)
            down = i;
    int across = n_pes / down, row = me / across, column = me % across;
    int top = row * SIZE / down, bottom = (row + 1) * SIZE / down;
    int left = column * SIZE / across, right = (column + 1) * SIZE / across;
    neighbour_at[0] = row > 0 ? me - across : -1;
    neighbour_at[1] = row + 1 < down ? me + across : -1;
    neighbour_at[2] = column > 0 ? me - 1 : -1;
    neighbour_at[3] = column + 1 < across ? me + 1 : -1;
    sent = shmem_calloc((size_t)n_pes * SIZE, sizeof(double));
    received = shmem_calloc((size_t)2 * n_pes * SIZE, sizeof(double));

    begin(&plate, 0, SIZE, 0, SIZE);
    for (int i = 0; i < STEPS; i++)
        step(&plate);

    void (*const ways[2])(uint64_t) = {exchange_by_puts, exchange_by_collective};
    double us_of_step[2];
    for (int way = 0; way < 2; way++) {
        begin(&block, top, bottom - top, left, right - left);
        shmem_barrier_all();
        double start = now_us();
        for (uint64_t turn = 1; turn <= STEPS; turn++) {
            step(&block);
            ways[way](turn);
        }
        shmem_barrier_all();
        us_of_step[way] = (now_us() - start) / STEPS;
        for (int y = top; y < bottom; y++)
            if (memcmp(&block.cells[(y - top + 1) * (block.width + 2) + 1], &plate.cells[(y + 1) * (SIZE + 2) + left + 1],
                       block.width * sizeof(double))) {
                fprintf(stderr, "PE %d: row %d differs from the plate computed alone\n", me, y);
                shmem_global_exit(1);
            }
    }
    if (me == 0)
        printf("halo exchange, %d x %d PEs, %d x %d cells, every bit as computed alone: "
               "a step takes %.1f us by puts, %.1f us by alltoall\n",
               down, across, SIZE, SIZE, us_of_step[0], us_of_step[1]);
    shmem_finalize();
    return 0;
}
