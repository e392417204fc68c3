%% The examples in the text of the original library, as cases for any implementation: `canal_lock' and the referee.
-module(test_original_cases).

-export([transcript/0, resize_timeline/0]).

%% The shell transcript of "Usage": the calls of one process for `db' with a MaxPer of 3.
-spec transcript() -> [{Call :: acquire | release, Buckets :: 1 | 2, Answer :: term()}].
transcript() ->
    [
        {acquire, 1, {acquired, 1}},
        {acquire, 1, {acquired, 2}},
        {acquire, 1, {acquired, 3}},
        {acquire, 1, full},
        {acquire, 2, {acquired, 4}},
        {acquire, 1, full},
        {release, 1, ok},
        {acquire, 1, full},
        {release, 2, ok},
        {acquire, 1, {acquired, 3}},
        {acquire, 1, full}
    ].

%% "Behaviour Under Concurrent Resizes": five processes acquire with a MaxPer of 3, in this order.
-spec resize_timeline() -> [{Process :: atom(), Buckets :: 1 | 2, Answer :: term()}].
resize_timeline() ->
    [
        {b, 1, {acquired, 1}},
        {a, 1, {acquired, 2}},
        {c, 2, {acquired, 3}},
        {e, 1, full},
        {d, 2, {acquired, 4}}
    ].
