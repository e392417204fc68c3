%% How the public functions of canal_lock and canal_lock_quorum raise. There is one protocol: an internal call returns
%% `{raise, Cause}', with a canal_lock_errors:cause(), if the public function must raise. These are macros because
%% `error/3' puts the function that calls it on top of the stack trace. The including module defines ?ERRORS: the module
%% with `wrong/2' and `format_error/2'.

%% The largest timeout that every supported OTP release accepts, in milliseconds.
-define(MAX_MS, 16#ffffffff).

-define(IS_TIMEOUT(Value), ((is_integer(Value) andalso Value >= 0 andalso Value =< ?MAX_MS) orelse Value =:= infinity)).

%% Raises, with what the shell needs to explain the error (EEP 54).
-define(RAISE(Cause, Arguments),
    error(canal_lock_errors:reason(Cause), canal_lock_errors:arguments(Cause, Arguments), [
        {error_info, #{module => ?ERRORS, cause => Cause}}
    ])
).

%% Makes the call if no argument is wrong.
-define(CHECKED(Arguments, Call),
    case ?ERRORS:wrong(?FUNCTION_NAME, Arguments) of
        Wrong when map_size(Wrong) =:= 0 -> Call;
        _ -> ?RAISE(badarg, Arguments)
    end
).

%% The answer of an internal call. Raises if it is `{raise, Cause}'.
-define(ANSWER(Arguments, Call),
    case Call of
        {raise, Raised} -> ?RAISE(Raised, Arguments);
        Answered -> Answered
    end
).

%% The same for canal_lock_exit:call/3. The exit reason contains the public function, as for `gen_server:call/2'.
-define(ANSWER_OR_EXIT(Arguments, Call),
    try
        ?ANSWER(Arguments, Call)
    catch
        exit:Exit -> exit({Exit, {?MODULE, ?FUNCTION_NAME, Arguments}})
    end
).

%% Turns a cause that a native call raises into `{raise, Cause}'. Other errors pass.
-define(CAUGHT(Call),
    try
        Call
    catch
        error:Caught when
            Caught =:= badarg; Caught =:= not_started; Caught =:= system_limit; Caught =:= not_watched;
            Caught =:= nif_panicked
        ->
            {raise, Caught}
    end
).
