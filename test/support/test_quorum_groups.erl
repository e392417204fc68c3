%% Which members vote for a name: the hashes of native/quorum/src/groups.rs, with the default number of partitions.
-module(test_quorum_groups).

-export([voters/2, voters/3, alike/2]).

%% How many members vote for a name by default, if there are as many.
-define(REPLICAS, 5).

-define(PARTITIONS, 4096).
-define(SALT, 24_443).

-spec voters(canal_lock_quorum:name(), [node()]) -> [node()].
voters(Name, Members) ->
    voters(Name, Members, ?REPLICAS).

%% The voters of a name, in the order in which agents ask them.
-spec voters(canal_lock_quorum:name(), [node()], Replicas :: pos_integer()) -> [node()].
voters(Name, Members, Replicas) ->
    Partition = scatter(?SALT + partition(Name)),
    Scores = [
        {-scatter(Partition bxor scatter(Place)), Member}
     || {Place, Member} <- lists:enumerate(0, lists:sort(Members))
    ],
    [Member || {_, Member} <- lists:sublist(lists:sort(Scores), Replicas)].

%% This many names with the same partition as this one, so with the same voters.
-spec alike(canal_lock_quorum:name(), pos_integer()) -> [canal_lock_quorum:name()].
alike(Name, Count) ->
    alike(Name, partition(Name), Count, 1).

alike(_, _, 0, _) ->
    [];
alike(Name, Partition, Count, Number) ->
    case partition({Name, Number}) of
        Partition -> [{Name, Number} | alike(Name, Partition, Count - 1, Number + 1)];
        _ -> alike(Name, Partition, Count, Number + 1)
    end.

partition(Name) ->
    {ok, Bytes} = canal_lock_quorum_names:encode(Name),
    scatter(fold(Bytes, byte_size(Bytes))) rem ?PARTITIONS.

%% FxHash, over words of eight bytes.
fold(<<>>, Hash) ->
    Hash;
fold(<<Word:64/little, Rest/binary>>, Hash) ->
    Rotated = (Hash bsl 5) bor (Hash bsr 59),
    fold(Rest, word((word(Rotated) bxor Word) * 16#517cc1b727220a95));
fold(Bytes, Hash) ->
    fold(<<Bytes/binary, 0:(64 - bit_size(Bytes))>>, Hash).

%% The finalizer of SplitMix64.
scatter(Word) ->
    Z0 = word(Word + 16#9e3779b97f4a7c15),
    Z1 = word((Z0 bxor (Z0 bsr 30)) * 16#bf58476d1ce4e5b9),
    Z2 = word((Z1 bxor (Z1 bsr 27)) * 16#94d049bb133111eb),
    Z2 bxor (Z2 bsr 31).

word(Number) ->
    Number band 16#ffffffffffffffff.
