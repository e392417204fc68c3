%% The facts that the clients of a test record on nodes with faults. Each client appends to a file of its own without a
%% buffer, so the facts survive when its node is killed.
%%
%% Times are those of `os:perf_counter/1', CLOCK_MONOTONIC on Linux. It is the same for all VMs of a machine, also in
%% network namespaces, and neither the VM nor a change of the wall clock corrects it. (`erlang:monotonic_time/0' starts
%% from a different value in each VM. The clock of leases also counts while the machine sleeps, which no test does.)
-module(test_facts).

-export([open/2, note/2, read/1, now_ns/0]).
-export([longer/2, note_if_long/3, note_held/3]).

-export_type([span/0]).

%% Since when and until when something was found held, if that is not recorded yet.
-type span() :: none | {Since_ns :: integer(), Until_ns :: integer()}.

%% A client records that this often, or at each check. If the node is killed, only what happened since then is unknown.
-define(NOTE_NS, 5_000_000).

-define(PREFIX, "history_").

-spec now_ns() -> integer().
now_ns() ->
    os:perf_counter(nanosecond).

%% For a client whose name no other client in this folder has.
-spec open(file:filename(), test_quorum_history:client()) -> file:io_device().
open(Folder, Client = {Index, _}) ->
    Name = lists:concat([?PREFIX, Index, "_", erlang:phash2(Client), "_", erlang:unique_integer([positive])]),
    {ok, File} = file:open(filename:join(Folder, Name), [append, raw, binary]),
    ok = note({client, Client}, File),
    File.

-spec note(term(), file:io_device()) -> ok.
note(Fact, File) ->
    Bytes = term_to_binary(Fact),
    file:write(File, <<(byte_size(Bytes)):32, Bytes/binary>>).

-spec longer(Now_ns :: integer(), span()) -> span().
longer(Now, none) -> {Now, Now};
longer(Now, {Since, _}) -> {Since, Now}.

%% What is left to record.
-spec note_if_long(span(), Request :: pos_integer(), file:io_device()) -> span().
note_if_long(Span = {Since, Until}, Request, File) when Until - Since > ?NOTE_NS ->
    ok = note_held(Span, Request, File),
    none;
note_if_long(Span, _, _) ->
    Span.

-spec note_held(span(), Request :: pos_integer(), file:io_device()) -> ok.
note_held(none, _, _) -> ok;
note_held({Since, Until}, Request, File) -> note({held, Since, Until, Request}, File).

%% All histories of a folder, without a fact that was only partly written when its node was killed.
-spec read(file:filename()) -> [{test_quorum_history:client(), [Fact :: term()]}].
read(Folder) ->
    Read = [read_file(Path) || Path <- filelib:wildcard(filename:join(Folder, ?PREFIX "*"))],
    [{Client, Facts} || [{client, Client} | Facts] <- Read].

read_file(Path) ->
    {ok, Bytes} = file:read_file(Path),
    facts(Bytes).

facts(<<Size:32, Fact:Size/binary, Rest/binary>>) -> [binary_to_term(Fact) | facts(Rest)];
facts(_) -> [].
