%% Describes the machine and the versions of a run. Each report and file begins with these facts.
-module(bench_machine).

-export([facts/2]).

-spec facts(ModeName :: string(), bench_cases:mode()) -> bench_results:facts().
facts(ModeName, #{rounds := Rounds, sample_ms := SampleMs}) ->
    [
        {"machine", processor()},
        {"system", erlang:system_info(system_architecture)},
        {"otp", lists:append([erlang:system_info(otp_release), ", ", atom_to_list(erlang:system_info(emu_flavor))])},
        {"schedulers", integer_to_list(erlang:system_info(schedulers_online))},
        {"commit", commit()},
        {"mode", ModeName},
        {"calls", text("~b rounds, samples of ~b ms", [Rounds, SampleMs])},
        {"date", calendar:system_time_to_rfc3339(erlang:system_time(second), [{offset, "Z"}])}
    ].

%% Only Linux has this file.
processor() ->
    case file:read_file("/proc/cpuinfo") of
        {ok, Info} ->
            case re:run(Info, "^model name\\s*: (.*)$", [multiline, {capture, all_but_first, list}]) of
                {match, [Model]} -> text("~ts, ~b processors", [Model, erlang:system_info(logical_processors)]);
                nomatch -> "unknown"
            end;
        {error, _} ->
            "unknown"
    end.

commit() ->
    case string:trim(os:cmd("git describe --always --dirty --exclude '*' 2>/dev/null")) of
        "" -> "none";
        Commit -> Commit
    end.

text(Format, Arguments) ->
    lists:flatten(io_lib:format(Format, Arguments)).
