/* Teams and contexts. */
#include "check.h"

static void strided(int me, int n)
{
    shmem_team_t odd, back, none;
    int count = n / 2;
    check(shmem_team_split_strided(SHMEM_TEAM_WORLD, 1, 2, count, NULL, 0, &odd) == 0);
    check((odd != SHMEM_TEAM_INVALID) == (me % 2 == 1));
    check(shmem_team_my_pe(odd) == (me % 2 == 1 ? me / 2 : -1));
    check(shmem_team_n_pes(odd) == (me % 2 == 1 ? count : -1));
    check(shmem_team_translate_pe(odd, 0, SHMEM_TEAM_WORLD) == (me % 2 == 1 ? 1 : -1));
    check(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &back) == 0);
    check(shmem_team_my_pe(back) == n - 1 - me);
    check(shmem_team_translate_pe(back, 0, SHMEM_TEAM_WORLD) == n - 1);
    check(shmem_team_translate_pe(SHMEM_TEAM_WORLD, me, back) == n - 1 - me);
    check(shmem_team_split_strided(back, 0, 1, n, NULL, 0, &none) == 0);
    check(shmem_team_my_pe(none) == n - 1 - me);
    shmem_team_destroy(none);
    check(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n + 1, NULL, 0, &none) != 0);
    check(none == SHMEM_TEAM_INVALID);
    check(shmem_team_split_strided(SHMEM_TEAM_INVALID, 0, 1, 1, NULL, 0, &none) != 0);
    check(shmem_team_sync(back) == 0 && shmem_team_sync(SHMEM_TEAM_INVALID) != 0);
    shmem_team_destroy(odd);
    shmem_team_destroy(back);
    shmem_team_destroy(SHMEM_TEAM_INVALID);
}

static void axes(int me, int n)
{
    shmem_team_t row, column;
    check(shmem_team_split_2d(SHMEM_TEAM_SHARED, 2, NULL, 0, &row, NULL, 0, &column) == 0);
    check(shmem_team_my_pe(row) == me % 2 && shmem_team_my_pe(column) == me / 2);
    check(shmem_team_n_pes(row) == (me / 2 * 2 + 1 < n ? 2 : 1));
    check(shmem_team_n_pes(column) == (n - me % 2 + 1) / 2);
    shmem_team_sync(row);
    shmem_team_sync(column);
    shmem_team_destroy(row);
    shmem_team_destroy(column);
    check(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2 * n, NULL, 0, &row, NULL, 0, &column) == 0);
    check(shmem_team_n_pes(row) == n && shmem_team_n_pes(column) == 1);
    shmem_team_destroy(row);
    shmem_team_destroy(column);
}

static void contexts(int me, int n)
{
    shmem_team_t back, team;
    shmem_team_config_t config = {4}, read = {0};
    shmem_ctx_t ctx, private_ctx, invalid;
    long *word = shmem_calloc(1, sizeof(long));
    check(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, &config, SHMEM_TEAM_NUM_CONTEXTS, &back) == 0);
    check(shmem_team_get_config(back, SHMEM_TEAM_NUM_CONTEXTS, &read) == 0 && read.num_contexts == 4);
    check(shmem_team_create_ctx(back, 0, &ctx) == 0);
    check(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &invalid) != 0 && invalid == SHMEM_CTX_INVALID);
    check(shmem_ctx_get_team(ctx, &team) == 0 && team == back);
    check(shmem_ctx_get_team(SHMEM_CTX_DEFAULT, &team) == 0 && team == SHMEM_TEAM_WORLD);
    check(shmem_ctx_get_team(SHMEM_CTX_INVALID, &team) != 0 && team == SHMEM_TEAM_INVALID);
    shmem_ctx_session_start(ctx, SHMEM_CTX_SESSION_BATCH, NULL, 0);
    shmem_ctx_long_p(ctx, word, me + 1, shmem_team_my_pe(back));
    shmem_ctx_session_stop(ctx);
    shmem_ctx_fence(ctx);
    shmem_ctx_quiet(ctx);
    check(*word == me + 1 && shmem_ctx_long_g(ctx, word, n - 1 - me) == me + 1);
    check(shmem_ctx_create(SHMEM_CTX_PRIVATE, &private_ctx) == 0);
    shmem_ctx_destroy(private_ctx);
    shmem_ctx_destroy(SHMEM_CTX_INVALID);
    shmem_ctx_t many[1000];
    for (int i = 0; i < 1000; i++)
        check(shmem_ctx_create(SHMEM_CTX_SERIALIZED | SHMEM_CTX_NOSTORE, &many[i]) == 0);
    for (int i = 0; i < 1000; i++)
        shmem_ctx_destroy(many[i]);
    shmem_team_destroy(back);
    shmem_free(word);
}

static void thousands(int me, int n)
{
    shmem_team_t teams[100], team;
    for (int i = 0; i < 1000; i++) {
        check(shmem_team_split_strided(SHMEM_TEAM_WORLD, i % n, 1, n - i % n, NULL, 0, &team) == 0);
        check(shmem_team_my_pe(team) == (me >= i % n ? me - i % n : -1));
        shmem_team_sync(team);
        shmem_team_destroy(team);
    }
    for (int i = 0; i < 100; i++)
        check(shmem_team_split_strided(i == 0 ? SHMEM_TEAM_WORLD : teams[i - 1], 0, 1, n, NULL, 0, &teams[i]) == 0);
    for (int i = 0; i < 100; i++)
        shmem_team_destroy(teams[i]);
}

/* As many as there can be beside the two that always exist. */
enum { MOST = 1022 };

static void all_but_one(int n)
{
    static shmem_team_t teams[MOST];
    shmem_team_t row = SHMEM_TEAM_WORLD, column = SHMEM_TEAM_WORLD;
    for (int i = 0; i < MOST - 1; i++)
        check(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &teams[i]) == 0);
    /* Both axes or none, on all PEs alike. */
    check(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column) != 0);
    check(row == SHMEM_TEAM_INVALID && column == SHMEM_TEAM_INVALID);
    /* The one that is left is left. */
    check(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &teams[MOST - 1]) == 0);
    check(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &row) != 0);
    for (int i = 0; i < MOST; i++)
        shmem_team_destroy(teams[i]);
    check(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column) == 0);
    shmem_team_destroy(row);
    shmem_team_destroy(column);
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    check(shmem_team_my_pe(SHMEM_TEAM_WORLD) == me && shmem_team_n_pes(SHMEM_TEAM_SHARED) == n);
    strided(me, n);
    axes(me, n);
    contexts(me, n);
    thousands(me, n);
    all_but_one(n);
    shmem_finalize();
    return 0;
}
