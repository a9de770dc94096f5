/* Executes AMX tile instructions in software, on an x86-64 Linux machine whose CPU has none.
 *
 * Such a CPU raises SIGILL at them; the handler reads the instruction, does what Intel's manual says (SDM, volume 2;
 * sums of bf16 products as in TDPBF16PS's pseudocode: even and odd steps apart, subnormals are zeros), and goes on
 * behind it. Tiles belong to a thread. Any other illegal instruction goes where it went before.
 */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Configuration;

typedef struct {
    Configuration configuration;
    union { uint8_t bytes[64]; int32_t sums[16]; float values[16]; } tile[8][16];
} Tiles;

static __thread Tiles *mine __attribute__((tls_model("initial-exec")));
static struct sigaction before;
static unsigned long executed;

unsigned long amx_emulated(void) { return __atomic_load_n(&executed, __ATOMIC_RELAXED); }

static const int REGISTER[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                 REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

typedef struct {
    int prefix, opcode, reg, rm, second, in_memory;
    uint8_t *address;
    int64_t stride;
    const uint8_t *end;
} Instruction;

/* The VEX-coded instruction at `at`, map 0F38, 128 bits, W0; 0 if it is none. */
static int decode(const uint8_t *at, const greg_t *registers, Instruction *i) {
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0) return 0;
    int x = !(at[1] & 0x40), b = !(at[1] & 0x20), modrm = at[4], mod = modrm >> 6;
    i->prefix = at[2] & 3, i->opcode = at[3], i->second = ~(at[2] >> 3) & 15;
    i->reg = (modrm >> 3) & 7, i->rm = modrm & 7, i->in_memory = mod != 3;
    const uint8_t *p = at + 5;
    i->end = p, i->stride = 0, i->address = 0;
    if (!i->in_memory) return 1;
    int64_t base = 0, displacement = 0;
    int wide = mod == 2, relative = 0;
    if (i->rm == 4) {
        int sib = *p++, index = ((sib >> 3) & 7) | x << 3, from = (sib & 7) | b << 3;
        if (index != 4) i->stride = registers[REGISTER[index]] << (sib >> 6);
        if ((from & 7) == 5 && mod == 0) wide = 1;
        else base = registers[REGISTER[from]];
    } else if (i->rm == 5 && mod == 0) {
        wide = relative = 1;
    } else {
        base = registers[REGISTER[i->rm | b << 3]];
    }
    if (wide) {
        int32_t d;
        memcpy(&d, p, 4), p += 4, displacement = d;
    } else if (mod == 1) {
        displacement = (int8_t)*p++;
    }
    i->end = p;
    i->address = (uint8_t *)(base + displacement + (relative ? (int64_t)p : 0));
    return 1;
}

static float bf16(const uint8_t *at) {
    uint32_t bits = 0;
    float value;
    memcpy((uint8_t *)&bits + 2, at, 2);
    memcpy(&value, &bits, 4);
    return fpclassify(value) == FP_SUBNORMAL ? copysignf(0, value) : value;
}

static float flushed(float value) { return fpclassify(value) == FP_SUBNORMAL ? copysignf(0, value) : value; }

static int32_t byte(uint8_t value, int is_signed) { return is_signed ? (int8_t)value : value; }

static void multiply_bf16(Tiles *t, int into, int left, int right) {
    int rows = t->configuration.rows[into], columns = t->configuration.row_bytes[into] / 4;
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            float even = 0, odd = 0;
            for (int k = 0; k < t->configuration.row_bytes[left] / 4; k++) {
                const uint8_t *a = t->tile[left][m].bytes + 4 * k, *b = t->tile[right][k].bytes + 4 * n;
                even = flushed(fmaf(bf16(a), bf16(b), even));
                odd = flushed(fmaf(bf16(a + 2), bf16(b + 2), odd));
            }
            float *sum = &t->tile[into][m].values[n];
            *sum = flushed(flushed(*sum) + flushed(even + odd));
        }
}

static void multiply_bytes(Tiles *t, int into, int left, int right, int left_signed, int right_signed) {
    int rows = t->configuration.rows[into], columns = t->configuration.row_bytes[into] / 4;
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            uint32_t sum = (uint32_t)t->tile[into][m].sums[n];
            for (int k = 0; k < t->configuration.row_bytes[left] / 4; k++)
                for (int g = 0; g < 4; g++)
                    sum += (uint32_t)(byte(t->tile[left][m].bytes[4 * k + g], left_signed) *
                                      byte(t->tile[right][k].bytes[4 * n + g], right_signed));
            t->tile[into][m].sums[n] = (int32_t)sum;
        }
}

static void move(Tiles *t, const Instruction *i, int store) {
    int number = i->reg, size = t->configuration.row_bytes[number];
    if (!store) memset(t->tile[number], 0, sizeof t->tile[number]);
    for (int r = 0; r < t->configuration.rows[number]; r++) {
        uint8_t *row = i->address + r * i->stride;
        if (store) memcpy(row, t->tile[number][r].bytes, size);
        else memcpy(t->tile[number][r].bytes, row, size);
    }
}

enum { NONE, P66, PF3, PF2 };

/* 0 for what is no AMX instruction, or one that faults: tiles used while not configured. */
static int execute(const Instruction *i) {
    if (i->opcode == 0x49 && i->in_memory && i->prefix == NONE) {
        if (!mine) mine = malloc(sizeof *mine);
        memset(mine, 0, sizeof *mine);
        memcpy(&mine->configuration, i->address, sizeof mine->configuration);
        return mine->configuration.palette <= 1;
    }
    if (i->opcode == 0x49 && !i->in_memory && i->prefix == NONE) {
        if (mine) memset(mine, 0, sizeof *mine);
        return 1;
    }
    if (!mine || mine->configuration.palette != 1) return 0;
    switch (i->opcode) {
    case 0x49:
        if (i->in_memory || i->prefix != PF2) return 0;
        memset(mine->tile[i->reg], 0, sizeof mine->tile[0]);
        return 1;
    case 0x4B:
        if (!i->in_memory || i->prefix == NONE) return 0;
        move(mine, i, i->prefix == PF3);
        return 1;
    case 0x5C:
        if (i->in_memory || i->prefix != PF3) return 0;
        multiply_bf16(mine, i->reg, i->rm, i->second);
        return 1;
    case 0x5E:
        if (i->in_memory) return 0;
        multiply_bytes(mine, i->reg, i->rm, i->second, i->prefix == PF2 || i->prefix == PF3,
                       i->prefix == PF2 || i->prefix == P66);
        return 1;
    }
    return 0;
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    Instruction i;
    if (decode((const uint8_t *)registers[REG_RIP], registers, &i) && execute(&i)) {
        registers[REG_RIP] = (greg_t)i.end;
        __atomic_fetch_add(&executed, 1, __ATOMIC_RELAXED);
        return;
    }
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
    else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) sigaction(SIGILL, &before, 0);
    else before.sa_handler(number);
}

/* Puts the handler in place; 0 where that worked. */
int amx_emulate(void) {
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    return sigaction(SIGILL, &action, &before);
}
