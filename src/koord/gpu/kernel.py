"""The kernel of the probe, as PTX text that the driver compiles: arithmetic that touches no memory.

Each thread multiplies and adds in eight independent chains, which fills the multiprocessor's lanes. The first thread
of a block counts the block at its multiprocessor, so that the host learns how many of them a process reaches; the
first block also adds up its cycles and nanoseconds, from which the clock follows.
"""

from __future__ import annotations

import struct

ENTRY = "koord_probe"
THREADS = 256  # of a block; eight blocks fill a multiprocessor
BLOCKS_PER_SM = 8
CHAINS, REPEATS = 8, 32
FMA_PER_ROUND = CHAINS * REPEATS  # of one thread
# Of the instructions of a round these are no arithmetic: subtract, compare, branch.
ISSUE_SHARE = FMA_PER_ROUND / (FMA_PER_ROUND + 3)
SM_SLOTS = 1024  # counters of multiprocessors, more than any card has
COUNTER_BYTES = SM_SLOTS * 4
CLOCK_BYTES = 16  # cycles, nanoseconds

# The newest architecture that the text's version knows; the driver compiles it for any later one.
_PTX_VERSION, _NEWEST_TARGET = "6.3", 75

# 32-bit multiply-add lanes of a multiprocessor, by compute capability.
_LANES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (6, 0): 64}
_LANES_LATER = 128


def fma_lanes(capability: tuple[int, int]) -> int:
    return _LANES.get(capability, _LANES_LATER)


def probe_ptx(capability: tuple[int, int]) -> str:
    """Return the kernel for a card: entry(counters, clock, out, rounds)."""
    target = min(capability[0] * 10 + capability[1], _NEWEST_TARGET)
    chains = range(1, CHAINS + 1)
    # Chains that began alike would be one to the driver's compiler.
    starts = "\n".join(f"    add.f32 %f{n}, %f9, 0f{struct.pack('>f', n).hex().upper()};" for n in chains)
    step = "\n".join(f"    fma.rn.f32 %f{n}, %f{n}, %f10, %f11;" for n in chains)
    total = "\n".join(f"    add.f32 %f1, %f1, %f{n};" for n in list(chains)[1:])
    body = "\n".join([step] * REPEATS)
    return f"""
.version {_PTX_VERSION}
.target sm_{target}
.address_size 64

.visible .entry {ENTRY}(
    .param .u64 p_counters,
    .param .u64 p_clock,
    .param .u64 p_out,
    .param .u32 p_rounds
)
{{
    .reg .pred %p<6>;
    .reg .b32 %r<8>;
    .reg .f32 %f<12>;
    .reg .b64 %rd<16>;

    ld.param.u64 %rd1, [p_counters];
    ld.param.u64 %rd2, [p_clock];
    ld.param.u64 %rd3, [p_out];
    ld.param.u32 %r1, [p_rounds];
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    or.b32 %r4, %r2, %r3;
    setp.eq.u32 %p1, %r4, 0;
    setp.ne.u32 %p2, %r2, 0;
    mov.u64 %rd9, 0;
    mov.u64 %rd10, 0;
    @%p2 bra WORK;
    mov.u32 %r5, %smid;
    mul.wide.u32 %rd7, %r5, 4;
    add.u64 %rd8, %rd4, %rd7;
    red.global.add.u32 [%rd8], 1;
    mov.u64 %rd9, %clock64;
    mov.u64 %rd10, %globaltimer;
WORK:
    cvt.rn.f32.u32 %f9, %r2;
    mov.f32 %f10, 0f3F7FF000;
    mov.f32 %f11, 0f3A83126F;
{starts}
    setp.eq.u32 %p3, %r1, 0;
    @%p3 bra DONE;
LOOP:
{body}
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p4, %r1, 0;
    @%p4 bra LOOP;
DONE:
{total}
    setp.eq.f32 %p5, %f1, 0f42F6E979;
    @%p5 st.global.f32 [%rd6], %f1;
    @!%p1 bra END;
    mov.u64 %rd11, %clock64;
    mov.u64 %rd12, %globaltimer;
    sub.u64 %rd13, %rd11, %rd9;
    sub.u64 %rd14, %rd12, %rd10;
    red.global.add.u64 [%rd5], %rd13;
    red.global.add.u64 [%rd5+8], %rd14;
END:
    ret;
}}
"""
