# SPDX-License-Identifier: Apache-2.0
"""LLVM IR that every module brings: parallel loops on OpenMP's threads, and chains of kernels.

A parallel loop comes as TVM's closure, ``int (*)(int task, {void* sync, int tasks}*, void* data)``, whose data begins
with the number of points (see ``emit.py``), 4 bytes of it at least. Each thread takes its own share of the tasks first,
the same of the same data in each kernel, so that what it wrote is in its cache; then it helps others.
"""

from __future__ import annotations

from fusec.codegen.tvm.chain import CHAIN

TASKS_PER_THREAD = 16
"""At most: an uneven loop (a causal mask) is balanced by so many."""

_MOST_TASKS = 256
_LINE = 128
"""Bytes between what two threads write: a cache line and the one that is fetched along with it."""

_YIELD_AFTER = 1024
"""Rounds of waiting, of 20 to 50 ns, after which the core is offered to others."""

PAUSES = {"x86_64": "pause", "aarch64": "yield"}
"""The instruction that a waiting thread spends its time with, by architecture."""


def launcher_ir(pause: str) -> str:
    """The IR; ``pause`` is assembly, which may be empty."""
    wait = f'call void asm sideeffect "{pause}", "~{{memory}}"()'
    return _GLOBALS + _TASKS + _TAKE + _LAUNCH.replace("WAIT", wait) + _TEAM.replace("WAIT", wait) + _CHAIN


_GLOBALS = """
@__TVMBackendParallelLaunch = external global ptr
@fusec_gomp_parallel = weak global ptr null
@fusec_num_threads = weak global ptr null
@fusec_thread_number = weak global ptr null
@fusec_max_threads = weak global ptr null
@fusec_self = weak global ptr null
@fusec_yield = weak global ptr null
@fusec_owner = weak global i64 0
@fusec_chain_state = weak global ptr null
declare i32 @fusec_worker(ptr)
declare i32 @fusec_team(ptr)
declare i32 @fusec_launch(ptr, ptr, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define i32 @fusec_use(i64 %a0, i64 %a1, i64 %a2, i64 %a3, i64 %a4, i64 %a5) {
  %p0 = inttoptr i64 %a0 to ptr
  %p1 = inttoptr i64 %a1 to ptr
  %p2 = inttoptr i64 %a2 to ptr
  %p3 = inttoptr i64 %a3 to ptr
  %p4 = inttoptr i64 %a4 to ptr
  %p5 = inttoptr i64 %a5 to ptr
  store ptr %p0, ptr @fusec_gomp_parallel
  store ptr %p1, ptr @fusec_num_threads
  store ptr %p2, ptr @fusec_thread_number
  store ptr %p3, ptr @fusec_max_threads
  store ptr %p4, ptr @fusec_self
  store ptr %p5, ptr @fusec_yield
  store ptr @fusec_launch, ptr @__TVMBackendParallelLaunch
  ret i32 0
}
"""

# Whatever number the data begins with, there is a task, and not too many: a wrong number costs time only.
_TASKS = f"""
define i32 @fusec_tasks(ptr %data, i32 %threads) {{
  %points = load i32, ptr %data
  %share = udiv i32 {_MOST_TASKS}, %threads
  %most = call i32 @llvm.umin.i32(i32 %share, i32 {TASKS_PER_THREAD})
  %each = call i32 @llvm.umax.i32(i32 %most, i32 1)
  %limit = mul i32 %threads, %each
  %few = icmp ule i32 %points, %limit
  %less = sub i32 %points, 1
  %step_less = udiv i32 %less, %limit
  %step = add i32 %step_less, 1
  %tasks_less = udiv i32 %less, %step
  %many = add i32 %tasks_less, 1
  %tasks = select i1 %few, i32 %points, i32 %many
  %bounded = call i32 @llvm.umin.i32(i32 %tasks, i32 %limit)
  %some = call i32 @llvm.umax.i32(i32 %bounded, i32 1)
  ret i32 %some
}}
declare i32 @llvm.umin.i32(i32, i32)
declare i32 @llvm.umax.i32(i32, i32)
"""

# A job lies in memory of the thread that launches: at 0 its number, at 8 the closure, 16 its data, 24 the tasks, 28
# the threads; at _LINE the tasks that are left; at 2 * _LINE and so on a word for each thread: the job's number above,
# below how many of the thread's own tasks are taken. A word with an earlier number says that none are, so nobody has to
# clear it. A word that was changed under the job's number proves that the job is not over, and that what was read of it
# before belongs together.
_TAKE = f"""
define i32 @fusec_take(ptr %job, i64 %number, i32 %me) {{
entry:
  %env = alloca {{ ptr, i32 }}, align 8
  %closure_at = getelementptr i8, ptr %job, i64 8
  %closure = load ptr, ptr %closure_at
  %data_at = getelementptr i8, ptr %job, i64 16
  %data = load ptr, ptr %data_at
  %tasks_at = getelementptr i8, ptr %job, i64 24
  %tasks = load i32, ptr %tasks_at
  %threads_at = getelementptr i8, ptr %job, i64 28
  %threads = load i32, ptr %threads_at
  store ptr null, ptr %env
  %env_tasks_at = getelementptr i8, ptr %env, i64 8
  store i32 %tasks, ptr %env_tasks_at
  %high = shl i64 %number, 32
  br label %share
share:
  %k = phi i32 [ 0, %entry ], [ %k_next, %empty ]
  %done = phi i32 [ 0, %entry ], [ %done_here, %empty ]
  %over = icmp uge i32 %k, %threads
  br i1 %over, label %end, label %look
look:
  %sum = add i32 %me, %k
  %who = urem i32 %sum, %threads
  %low_product = mul i32 %who, %tasks
  %low = udiv i32 %low_product, %threads
  %stop_product = add i32 %low_product, %tasks
  %stop = udiv i32 %stop_product, %threads
  %size = sub i32 %stop, %low
  %who_wide = zext i32 %who to i64
  %line = mul i64 %who_wide, {_LINE}
  %word_offset = add i64 %line, {2 * _LINE}
  %word_at = getelementptr i8, ptr %job, i64 %word_offset
  %first_word = load atomic i64, ptr %word_at acquire, align 8
  br label %claim
claim:
  %word = phi i64 [ %first_word, %look ], [ %seen, %lost ], [ %wanted, %ran ]
  %done_here = phi i32 [ %done, %look ], [ %done_here, %lost ], [ %done_more, %ran ]
  %word_number = lshr i64 %word, 32
  %later = icmp ugt i64 %word_number, %number
  br i1 %later, label %end, label %count
count:
  %current = icmp eq i64 %word_number, %number
  %word_low = trunc i64 %word to i32
  %taken = select i1 %current, i32 %word_low, i32 0
  %some = icmp ult i32 %taken, %size
  br i1 %some, label %try, label %empty
try:
  %rest = sub i32 %size, %taken
  %rest_up = add i32 %rest, 1
  %chunk = lshr i32 %rest_up, 1
  %after = add i32 %taken, %chunk
  %after_wide = zext i32 %after to i64
  %wanted = or i64 %high, %after_wide
  %pair = cmpxchg ptr %word_at, i64 %word, i64 %wanted acq_rel acquire, align 8
  %won = extractvalue {{ i64, i1 }} %pair, 1
  %begin = add i32 %low, %taken
  %finish = add i32 %low, %after
  br i1 %won, label %run, label %lost
lost:
  %seen = extractvalue {{ i64, i1 }} %pair, 0
  br label %claim
run:
  %task = phi i32 [ %begin, %try ], [ %task_next, %run ]
  %status = call i32 %closure(i32 %task, ptr %env, ptr %data)
  %task_next = add i32 %task, 1
  %more = icmp ult i32 %task_next, %finish
  br i1 %more, label %run, label %ran
ran:
  %done_more = add i32 %done_here, %chunk
  br label %claim
empty:
  %k_next = add i32 %k, 1
  br label %share
end:
  %all = phi i32 [ %done, %share ], [ %done_here, %claim ]
  ret i32 %all
}}
"""

# In a chain (state at @fusec_chain_state, of the thread @fusec_owner) a loop goes to the team that is there already,
# where there is one (at 56), and is counted (at 52). Elsewhere it is a region of its own.
_LAUNCH = f"""
define i32 @fusec_launch_impl(ptr %closure, ptr %data, i32 %ignored) {{
entry:
  %env = alloca {{ ptr, i32 }}, align 8
  %owner = load atomic i64, ptr @fusec_owner monotonic, align 8
  %owned = icmp ne i64 %owner, 0
  br i1 %owned, label %whose, label %outside
whose:
  %self_of = load ptr, ptr @fusec_self
  %self = call i64 %self_of()
  %mine = icmp eq i64 %owner, %self
  br i1 %mine, label %inside, label %outside
inside:
  %state = load ptr, ptr @fusec_chain_state
  %counted_at = getelementptr i8, ptr %state, i64 52
  %counted = load i32, ptr %counted_at
  %counted_more = add i32 %counted, 1
  store i32 %counted_more, ptr %counted_at
  %team_at = getelementptr i8, ptr %state, i64 56
  %team = load i32, ptr %team_at
  %has_team = icmp ne i32 %team, 0
  br i1 %has_team, label %publish, label %outside
publish:
  %team_tasks = call i32 @fusec_tasks(ptr %data, i32 %team)
  %team_one = icmp eq i32 %team_tasks, 1
  br i1 %team_one, label %alone, label %publish_job
publish_job:
  %team_closure_at = getelementptr i8, ptr %state, i64 8
  store ptr %closure, ptr %team_closure_at
  %team_data_at = getelementptr i8, ptr %state, i64 16
  store ptr %data, ptr %team_data_at
  %team_tasks_at = getelementptr i8, ptr %state, i64 24
  store i32 %team_tasks, ptr %team_tasks_at
  %left_at = getelementptr i8, ptr %state, i64 {_LINE}
  store atomic i32 %team_tasks, ptr %left_at monotonic, align 4
  %last = load atomic i64, ptr %state monotonic, align 8
  %number = add i64 %last, 1
  store atomic i64 %number, ptr %state release, align 8
  %done = call i32 @fusec_take(ptr %state, i64 %number, i32 0)
  %before = atomicrmw sub ptr %left_at, i32 %done acq_rel
  %whole = icmp eq i32 %before, %done
  br i1 %whole, label %finished, label %wait
wait:
  %round = phi i32 [ 1, %publish_job ], [ %round_next, %wait_on ]
  WAIT
  %left = load atomic i32, ptr %left_at acquire, align 4
  %none_left = icmp eq i32 %left, 0
  br i1 %none_left, label %finished, label %wait_long
wait_long:
  %round_next = add i32 %round, 1
  %within = urem i32 %round, {_YIELD_AFTER}
  %long = icmp eq i32 %within, 0
  br i1 %long, label %offer, label %wait_on
offer:
  %yield = load ptr, ptr @fusec_yield
  %offered = call i32 %yield()
  br label %wait_on
wait_on:
  br label %wait
finished:
  ret i32 0
outside:
  %max_of = load ptr, ptr @fusec_max_threads
  %threads = call i32 %max_of()
  %tasks = call i32 @fusec_tasks(ptr %data, i32 %threads)
  %one_task = icmp eq i32 %tasks, 1
  %one_thread = icmp eq i32 %threads, 1
  %one = or i1 %one_task, %one_thread
  br i1 %one, label %alone, label %region
alone:
  store ptr null, ptr %env
  %env_tasks_at = getelementptr i8, ptr %env, i64 8
  store i32 1, ptr %env_tasks_at
  %status = call i32 %closure(i32 0, ptr %env, ptr %data)
  ret i32 0
region:
  %lines = add i32 %threads, 2
  %lines_wide = zext i32 %lines to i64
  %bytes = mul i64 %lines_wide, {_LINE}
  %job = alloca i8, i64 %bytes, align {_LINE}
  call void @llvm.memset.p0.i64(ptr %job, i8 0, i64 %bytes, i1 false)
  %closure_at = getelementptr i8, ptr %job, i64 8
  store ptr %closure, ptr %closure_at
  %data_at = getelementptr i8, ptr %job, i64 16
  store ptr %data, ptr %data_at
  %tasks_at = getelementptr i8, ptr %job, i64 24
  store i32 %tasks, ptr %tasks_at
  %threads_at = getelementptr i8, ptr %job, i64 28
  store i32 %threads, ptr %threads_at
  %parallel = load ptr, ptr @fusec_gomp_parallel
  call void %parallel(ptr @fusec_worker, ptr %job, i32 %threads, i32 0)
  ret i32 0
}}
define i32 @fusec_worker_impl(ptr %job) {{
  %number_of = load ptr, ptr @fusec_thread_number
  %me = call i32 %number_of()
  %done = call i32 @fusec_take(ptr %job, i64 1, i32 %me)
  ret i32 0
}}
"""

# The state of a chain is a job, with the call's values at 32, its result at 40 and its status at 48. The calling thread
# is the team's first: it runs the kernels, the others wait for their loops.
_TEAM = f"""
define i32 @fusec_team_impl(ptr %state) {{
entry:
  %number_of = load ptr, ptr @fusec_thread_number
  %me = call i32 %number_of()
  %first = icmp eq i32 %me, 0
  br i1 %first, label %lead, label %wait
lead:
  %count_threads = load ptr, ptr @fusec_num_threads
  %threads = call i32 %count_threads()
  %threads_at = getelementptr i8, ptr %state, i64 28
  store i32 %threads, ptr %threads_at
  %team_at = getelementptr i8, ptr %state, i64 56
  store i32 %threads, ptr %team_at
  %given_at = getelementptr i8, ptr %state, i64 32
  %given = load ptr, ptr %given_at
  %result_at = getelementptr i8, ptr %state, i64 40
  %result = load ptr, ptr %result_at
  %status = call i32 @fusec_run(ptr %given, ptr %result)
  %status_at = getelementptr i8, ptr %state, i64 48
  store i32 %status, ptr %status_at
  store atomic i64 -1, ptr %state release, align 8
  ret i32 0
wait:
  %seen = phi i64 [ 0, %entry ], [ %seen, %wait_on ], [ %number, %worked ]
  %round = phi i32 [ 1, %entry ], [ %round_next, %wait_on ], [ 1, %worked ]
  %number = load atomic i64, ptr %state acquire, align 8
  %is_new = icmp ne i64 %number, %seen
  br i1 %is_new, label %news, label %wait_long
wait_long:
  WAIT
  %round_next = add i32 %round, 1
  %within = urem i32 %round, {_YIELD_AFTER}
  %long = icmp eq i32 %within, 0
  br i1 %long, label %offer, label %wait_on
offer:
  %yield = load ptr, ptr @fusec_yield
  %offered = call i32 %yield()
  br label %wait_on
wait_on:
  br label %wait
news:
  %is_end = icmp eq i64 %number, -1
  br i1 %is_end, label %end, label %work
work:
  %done = call i32 @fusec_take(ptr %state, i64 %number, i32 %me)
  %any = icmp ne i32 %done, 0
  br i1 %any, label %say, label %worked
say:
  %left_at = getelementptr i8, ptr %state, i64 {_LINE}
  %before = atomicrmw sub ptr %left_at, i32 %done release
  br label %worked
worked:
  br label %wait
end:
  ret i32 0
}}
"""

# The table is described in chain.py. A team is made where the last call had several parallel loops.
_CHAIN = f"""
define i32 @fusec_run(ptr %given, ptr %result) {{
entry:
  %table_at = getelementptr i8, ptr %given, i64 8
  %table = load ptr, ptr %table_at
  %most = load i64, ptr %table
  %launches_at = getelementptr i64, ptr %table, i64 1
  %launches = load i64, ptr %launches_at
  %frame = alloca {{ i64, i64 }}, i64 %most, align 16
  %first = getelementptr i64, ptr %table, i64 3
  br label %launch
launch:
  %left = phi i64 [ %launches, %entry ], [ %fewer, %called ]
  %at = phi ptr [ %first, %entry ], [ %next, %called ]
  %over = icmp eq i64 %left, 0
  br i1 %over, label %done, label %head
head:
  %call = load ptr, ptr %at
  %object_at = getelementptr i64, ptr %at, i64 1
  %object = load ptr, ptr %object_at
  %arguments_at = getelementptr i64, ptr %at, i64 2
  %arguments = load i64, ptr %arguments_at
  %pairs = getelementptr i64, ptr %at, i64 3
  br label %argument
argument:
  %k = phi i64 [ 0, %head ], [ %following, %put ]
  %filled = icmp eq i64 %k, %arguments
  br i1 %filled, label %ready, label %fill
fill:
  %pair = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %k
  %coded = load i64, ptr %pair
  %offset_at = getelementptr i64, ptr %pair, i64 1
  %offset = load i64, ptr %offset_at
  %number = and i64 %coded, 4294967295
  %field = lshr i64 %coded, 32
  %tagged = getelementptr {{ i64, i64 }}, ptr %given, i64 %number
  %base_at = getelementptr i64, ptr %tagged, i64 1
  %is_address = icmp eq i64 %field, 0
  br i1 %is_address, label %put, label %follow
follow:
  %object_start = load i64, ptr %base_at
  %field_at = add i64 %object_start, %field
  %read_from = inttoptr i64 %field_at to ptr
  br label %put
put:
  %source = phi ptr [ %base_at, %fill ], [ %read_from, %follow ]
  %base = load i64, ptr %source
  %value = add i64 %base, %offset
  %into = getelementptr {{ i64, i64 }}, ptr %frame, i64 %k
  store i64 1, ptr %into
  %value_at = getelementptr i64, ptr %into, i64 1
  store i64 %value, ptr %value_at
  %following = add i64 %k, 1
  br label %argument
ready:
  %narrow = trunc i64 %arguments to i32
  %status = call i32 %call(ptr %object, ptr %frame, i32 %narrow, ptr %result)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %stop, label %called
called:
  %fewer = sub i64 %left, 1
  %next = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %arguments
  br label %launch
stop:
  ret i32 %status
done:
  ret i32 0
}}
define i32 @{CHAIN}_impl(ptr %self, ptr %given, i32 %count, ptr %result) {{
entry:
  %table_at = getelementptr i8, ptr %given, i64 8
  %table = load ptr, ptr %table_at
  %launches_at = getelementptr i64, ptr %table, i64 1
  %launches = load i64, ptr %launches_at
  %follow_each_other = icmp ugt i64 %launches, 1
  %parallel = load ptr, ptr @fusec_gomp_parallel
  %pool = icmp ne ptr %parallel, null
  %may_ask = and i1 %pool, %follow_each_other
  br i1 %may_ask, label %ask, label %plain
ask:
  %max_of = load ptr, ptr @fusec_max_threads
  %threads = call i32 %max_of()
  %several = icmp ugt i32 %threads, 1
  br i1 %several, label %enter, label %plain
enter:
  %self_of = load ptr, ptr @fusec_self
  %me = call i64 %self_of()
  %pair = cmpxchg ptr @fusec_owner, i64 0, i64 %me acq_rel monotonic, align 8
  %entered = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %entered, label %prepare, label %plain
prepare:
  %lines = add i32 %threads, 2
  %lines_wide = zext i32 %lines to i64
  %bytes = mul i64 %lines_wide, {_LINE}
  %state = alloca i8, i64 %bytes, align {_LINE}
  call void @llvm.memset.p0.i64(ptr %state, i8 0, i64 %bytes, i1 false)
  store ptr %state, ptr @fusec_chain_state
  %noted_at = getelementptr i64, ptr %table, i64 2
  %noted = load atomic i64, ptr %noted_at monotonic, align 8
  %worth = icmp ugt i64 %noted, 1
  br i1 %worth, label %team, label %count_only
team:
  %given_at = getelementptr i8, ptr %state, i64 32
  store ptr %given, ptr %given_at
  %result_at = getelementptr i8, ptr %state, i64 40
  store ptr %result, ptr %result_at
  call void %parallel(ptr @fusec_team, ptr %state, i32 %threads, i32 0)
  %team_status_at = getelementptr i8, ptr %state, i64 48
  %team_status = load i32, ptr %team_status_at
  br label %leave
count_only:
  %own_status = call i32 @fusec_run(ptr %given, ptr %result)
  br label %leave
leave:
  %status = phi i32 [ %team_status, %team ], [ %own_status, %count_only ]
  %counted_at = getelementptr i8, ptr %state, i64 52
  %counted = load i32, ptr %counted_at
  %counted_wide = zext i32 %counted to i64
  store atomic i64 %counted_wide, ptr %noted_at monotonic, align 8
  store atomic i64 0, ptr @fusec_owner release, align 8
  ret i32 %status
plain:
  %plain_status = call i32 @fusec_run(ptr %given, ptr %result)
  ret i32 %plain_status
}}
"""
