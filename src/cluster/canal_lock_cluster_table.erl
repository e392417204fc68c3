%% @private
%% The shares of this node in its permit table.
-module(canal_lock_cluster_table).

-export([serial/0, is_open/1, end_shares/0, set_share/5, use/2]).

-type serial() :: canal_lock_nif:serial().

%% Keys of one native call.
-define(KEYS, 100).

-spec serial() -> serial() | closed.
serial() ->
    case piece(0, 0) of
        {Serial, _, _} -> Serial;
        changed -> closed
    end.

%% Whether the table with this serial number is open.
-spec is_open(serial()) -> boolean().
is_open(Serial) ->
    piece(Serial, 0) =/= changed.

%% Ends the shares of all keys: no permit is granted from them any more, and the next call with a key passes its
%% capacity to the agent. Then sends each holder a message for each of its keys, and the table does not count its
%% permits any more. Answers how many are lost now.
-spec end_shares() -> Lost :: non_neg_integer().
end_shares() ->
    case end_shares(piece(0, 0)) of
        changed ->
            0;
        Serial ->
            case notify(Serial, {0, 0, 0}, 0) of
                changed -> end_shares();
                Lost -> Lost
            end
    end.

end_shares(changed) ->
    changed;
end_shares({Serial, Keys, Next}) ->
    Ended = [set_share(Serial, Key, 0, 0, none) || {Key, _, _} <- Keys],
    case lists:member(changed, Ended) of
        true -> end_shares(piece(0, 0));
        false when Next =:= done -> Serial;
        false -> end_shares(piece(Serial, Next))
    end.

notify(Serial, From, Lost) ->
    case opened(fun() -> canal_lock_nif:permits(shared, Serial, From) end) of
        changed ->
            changed;
        {_, Rows, Next} ->
            Sum = lists:sum([Lost | [lose(Serial, Key, Pid) || {Pid, Key, _, _} <- Rows]]),
            case Next of
                done -> Sum;
                _ -> notify(Serial, Next, Sum)
            end
    end.

%% Counted at once: what is lost already is not lost again, if this process is killed and the next one repeats this.
lose(Serial, Key, Pid) ->
    Pid ! {canal_lock_cluster, lost, Key},
    case opened(fun() -> canal_lock_interned:call(Key, fun(K) -> canal_lock_nif:lose(Serial, K, Pid) end) end) of
        changed ->
            0;
        Lost ->
            ok = canal_lock_cluster_totals:add(lost, Lost),
            Lost
    end.

%% `changed' if this table is not open.
-spec set_share(
    serial(), canal_lock:key(), non_neg_integer(), non_neg_integer(), non_neg_integer() | none
) -> ok | changed.
set_share(Serial, Key, Share, Limit, Passed) ->
    opened(fun() ->
        case canal_lock_interned:call(Key, fun(K) -> canal_lock_nif:set_share(Serial, K, Share, Limit, Passed) end) of
            changed -> changed;
            done -> ok;
            more -> canal_lock_interned:call(Key, fun settle/1)
        end
    end).

%% Grants the waiters in pieces.
settle(Key) ->
    case canal_lock_nif:settle(shared, Key) of
        done -> ok;
        more -> settle(Key)
    end.

-spec use(serial(), canal_lock:key()) -> canal_lock_nif:share() | none | changed.
use(Serial, Key) ->
    opened(fun() -> canal_lock_interned:call(Key, fun(K) -> canal_lock_nif:take_share(Serial, K) end) end).

piece(Serial, From) ->
    opened(fun() -> canal_lock_nif:shared_keys(Serial, From, ?KEYS) end).

opened(Call) ->
    try
        Call()
    catch
        error:not_started -> changed
    end.
