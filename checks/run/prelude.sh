# nhc-gpu gives this file to the one bash of a run. It has LBNL NHC's output functions, die, mcheck,
# the native checks as functions, and the loop that runs check lines. bash reads it from a memory
# file. The supervisor uses these descriptors:
# 240 commands 241 events 242 answers
# Three more have the line that runs one check (243), the library (245) and a writable file (246). All
# of them are close-on-exec: a program that a line starts must not inherit them, because it may run
# as an ordinary user.
# Every record is a series of NUL-terminated fields, see __nhc_read.
# The functions of the loop call builtins explicitly, because the site may define a function of the
# same name.

# __nhc_private FD...: makes descriptors close-on-exec. bash has no command for that, but it marks
# the copy of descriptor 0 that it keeps while 0 is redirected, and a duplicate of a marked
# descriptor is marked, too. The function reads the result from /proc, because the supervisor must
# not continue with a shell whose descriptors leak.
__nhc_private() {
    local __nhc_fd __nhc_i __nhc_key __nhc_flags __nhc_marked
    for __nhc_fd; do
        {
            {
                for ((__nhc_i = 10; __nhc_i < 256; __nhc_i++)); do
                    [[ $__nhc_i != "$__nhc_fd" && /proc/self/fd/$__nhc_i -ef /proc/self/fd/$__nhc_fd ]] || continue
                    builtin eval "exec $__nhc_fd<&$__nhc_i"
                    break
                done
            } </dev/null
        } <&"$__nhc_fd"
        __nhc_marked=0
        while IFS=$' \t' builtin read -r __nhc_key __nhc_flags; do
            [[ $__nhc_key != flags: ]] || __nhc_marked=$((__nhc_flags & 02000000)) # O_CLOEXEC
        done <"/proc/self/fdinfo/$__nhc_fd"
        if [[ $__nhc_marked == 0 ]]; then
            builtin echo "descriptor $__nhc_fd cannot be made close-on-exec" >&2
            builtin exit 1
        fi
    done
}

# __nhc_reserve FD...: the same for the descriptors of the loop, whose numbers may be above the limit of
# the lines.
__nhc_reserve() {
    local __nhc_soft
    builtin ulimit -Sn >/proc/self/fd/246
    builtin read -r __nhc_soft </proc/self/fd/246
    [[ $__nhc_soft == unlimited ]] || ((__nhc_soft > 246)) || builtin ulimit -Sn 247
    __nhc_private "$@"
    builtin ulimit -Sn "$__nhc_soft"
}

# __nhc_read FD VARIABLE: reads a field in the C locale: in another locale bash takes the NUL for a part of
# a broken character. bash complains each time that it cannot return to a locale that is not installed, and
# then is in the C locale already.
__nhc_locale='' __nhc_absent=0
__nhc_read() {
    if [[ ${LC_ALL-} != "$__nhc_locale" ]]; then
        local -a __nhc_said
        __nhc_locale="${LC_ALL-}" __nhc_absent=0
        { LC_ALL=C builtin true; } 2>|/proc/self/fd/246
        builtin mapfile -t __nhc_said </proc/self/fd/246
        [[ "${__nhc_said[*]-}" != *setlocale* ]] || __nhc_absent=1
    fi
    if [[ $__nhc_absent == 1 ]]; then
        IFS= builtin read -r -d '' -u "$1" "$2"
    else
        IFS= LC_ALL=C builtin read -r -d '' -u "$1" "$2"
    fi
}

# Event: TYPE COUNT FIELD... A line may have run "ulimit -n 3". A shell that cannot send events any
# more exits with a status for that.
__nhc_event() {
    builtin printf '%s\0' "$1" "$(($# - 1))" "${@:2}" >&241 ||
        { builtin ulimit -n 256 || builtin ulimit -Sn hard; builtin printf '%s\0' "$1" "$(($# - 1))" "${@:2}" >&241; } ||
        builtin exit 251
}

# This sends the settings that a check line may have changed to the supervisor.
__nhc_settings() {
    local __nhc_n __nhc_v=()
    for __nhc_n in "${__nhc_names[@]}"; do __nhc_v+=("$__nhc_n" "${!__nhc_n-}"); done
    __nhc_event settings "${__nhc_v[@]}"
    if [[ -n ${NHC_MCHECK_DELIM[*]-} || -n ${__nhc_delims-} ]]; then # native checks match with them, too
        __nhc_event array NHC_MCHECK_DELIM "${NHC_MCHECK_DELIM[@]}"
        __nhc_event array NHC_MCHECK_COMMAND "${NHC_MCHECK_COMMAND[@]}"
    fi
    __nhc_delims="${NHC_MCHECK_DELIM[*]-}"
    [[ $BASH_SUBSHELL != 0 ]] || __nhc_environ
}

# This sends the exported variables, if they have changed, for the commands of native checks. The
# names come through a memory file, which needs no process.
__nhc_environ() {
    local IFS=$'\n' __nhc_n __nhc_all=() __nhc_v=()
    builtin compgen -e >|/proc/self/fd/246 # also after "set -C"
    builtin mapfile -t __nhc_all </proc/self/fd/246
    for __nhc_n in "${__nhc_all[@]}"; do
        [[ $__nhc_n == *[!A-Za-z0-9_]* ]] || __nhc_v+=("$__nhc_n" "${!__nhc_n-}") # names alone may be expanded
    done
    [[ "${__nhc_v[*]}" == "${__nhc_exported-}" ]] || __nhc_event environ "${__nhc_v[@]}"
    __nhc_exported="${__nhc_v[*]}"
}

# This sends every variable after files of the site have been read: NAME ATTRIBUTES VALUE of the
# plain ones, and a separate event for each array.
__nhc_dump() {
    local __nhc_c __nhc_n __nhc_a __nhc_opts="$-"
    set +u # a file of the site may have asked for it, and a variable need have no value
    local -a __nhc_all=() __nhc_v=()
    for __nhc_c in {A..Z} {a..z} _; do eval "__nhc_all+=(\"\${!$__nhc_c@}\")"; done
    for __nhc_n in "${__nhc_all[@]}"; do
        [[ $__nhc_n == __nhc_* || $__nhc_n == BASH* || $__nhc_n == FUNCNAME ]] && continue
        __nhc_a="${!__nhc_n@a}"
        if [[ $__nhc_a == *[aA]* ]]; then
            local -n __nhc_ref="$__nhc_n"
            ((${#__nhc_ref[@]} == 0)) || __nhc_event array "$__nhc_n" "${__nhc_ref[@]}"
            unset -n __nhc_ref
        else
            __nhc_v+=("$__nhc_n" "$__nhc_a" "${!__nhc_n}")
        fi
    done
    __nhc_event dump "${__nhc_v[@]}"
    [[ $__nhc_opts != *u* ]] || set -u
}

__nhc_stamp() { if [[ ${TS:-0} -ne 0 ]] 2>/dev/null; then printf -v __nhc_ts '[%(%s)T] - ' -1; else __nhc_ts=''; fi; }

log() { [[ $SILENT == 0 ]] || return 0; local __nhc_ts; __nhc_stamp; echo "$__nhc_ts$@"; }
vlog() { [[ $VERBOSE == 1 ]] || return 0; local __nhc_ts; __nhc_stamp; echo "$__nhc_ts$@"; }
dbg() { [[ $DEBUG == 1 ]] || return 0; local __nhc_ts; __nhc_stamp; echo "${__nhc_ts}DEBUG:  $*"; }
oecho() { [[ $SILENT == 0 ]] || return 0; local __nhc_ts; __nhc_stamp; echo "$__nhc_ts$@" >&"$NHC_FD_OUT"; }
eecho() { [[ $SILENT == 0 ]] || return 0; local __nhc_ts; __nhc_stamp; echo "$__nhc_ts$@" >&"$NHC_FD_ERR"; }
vecho() { [[ $VERBOSE == 1 ]] || return 0; local __nhc_ts; __nhc_stamp; echo "$__nhc_ts$@" >&"$NHC_FD_OUT"; }

# A subshell's text for syslog is lost with it, unless the subshell sends it itself.
__nhc_kept=()
syslog() {
    local IFS=$' \t\n'
    if ((BASH_SUBSHELL)); then __nhc_kept+=("$*"); else __nhc_event syslog "$*"; fi
}
__nhc_tell_kept() {
    local __nhc_text
    for __nhc_text in "${__nhc_kept[@]}"; do __nhc_event syslog "$__nhc_text"; done
    __nhc_kept=()
}
syslog_flush() { __nhc_tell_kept; __nhc_event flush; }

# A question has a name, and so has its answer: NAME COUNT FIELD... If a subshell is killed while it
# waits, the next process that asks gets its answer. Subshells in the background read at the same
# time. So each subshell has its own pipe, held open at both ends; its number is the last part of
# the question's name.
__nhc_asked=0 __nhc_piped=$BASHPID __nhc_pipe=242
__nhc_question() {
    if [[ $__nhc_piped != "$BASHPID" ]]; then
        exec {__nhc_pipe}<> <(:)
        __nhc_private "$__nhc_pipe"
        __nhc_piped=$BASHPID
    fi
    __nhc_id="$BASHPID.$((++__nhc_asked)).$__nhc_pipe"
}
__nhc_receive() {
    local __nhc_whose __nhc_count __nhc_field __nhc_reading=1
    while __nhc_read "$__nhc_pipe" __nhc_whose && __nhc_read "$__nhc_pipe" __nhc_count; do
        __nhc_got=()
        while ((__nhc_count-- > 0)) && __nhc_read "$__nhc_pipe" __nhc_field; do __nhc_got+=("$__nhc_field"); done
        [[ $__nhc_whose != "$__nhc_id" ]] || return 0
    done
    return 1
}
__nhc_answer() {
    __nhc_receive
    local __nhc_received=$?
    [[ $__nhc_received == 0 ]] || __nhc_event broken "bash cannot read answers any more"
    if [[ -n ${__nhc_late-} ]]; then __nhc_signal "$__nhc_late" ''; fi
    return $__nhc_received
}

# __nhc_signal STATUS TEXT: the action of a trap, but not in the middle of an answer, because the
# trap's own question would take the rest of that answer for its own.
__nhc_signal() {
    if [[ -n ${__nhc_reading-} ]]; then
        __nhc_late="$1" __nhc_late_text="$2"
        return
    fi
    __nhc_late=''
    trap : HUP INT TERM ALRM # one is enough
    die "$1" "${2:-$__nhc_late_text}"
    exit "$1"
}

# die CODE MESSAGE: the check has failed. A log line inside a command substitution was captured and
# has not been printed. A helper that dies itself is not called for its own death.
die() {
    IFS=$' \t\n' # also for its caller, as in LBNL NHC
    local __nhc_code="${1:-1}" __nhc_id __nhc_heard=1
    local -a __nhc_got
    shift
    CHECK_DIED=1
    log "ERROR:  $NAME:  Health check failed:  $*"
    if [[ $BASH_SUBSHELL != 0 && ! /proc/self/fd/1 -ef /proc/$$/fd/1 && ! -o pipefail ]]; then __nhc_heard=0; fi
    __nhc_settings
    __nhc_tell_kept
    __nhc_question
    __nhc_event die "$__nhc_id" "$__nhc_code" "$*" $((BASH_SUBSHELL > __nhc_own)) "$__nhc_heard"
    __nhc_answer
    if [[ ${__nhc_got[0]-} == helper && -z ${__nhc_helping-} ]]; then
        __nhc_helper "${__nhc_got[1]}" "$OFFLINE_NODE" "$HOSTNAME" "$*"
    fi
    __nhc_question
    __nhc_event died "$__nhc_id"
    __nhc_answer
    if [[ $NHC_CHECK_ALL == 1 ]]; then
        ((FAIL_CNT++))
        return 0
    fi
    exit "$__nhc_code"
}

# This runs the site's own OFFLINE_NODE or ONLINE_NODE: a function, or a command with its own
# arguments. Ours follow, and bash interprets no character of them, but a message that is too long
# for a command is cut.
# Syslog gets the failure ($1) before the helper runs.
# A bash older than 5.0 ends all functions before it runs the trap on EXIT, so a local variable
# could not show the trap that the helper has died.
__nhc_helper() {
    local __nhc_status
    __nhc_helping=1
    __nhc_run_helper "$@"
    __nhc_status=$?
    __nhc_helping=''
    return $__nhc_status
}
__nhc_run_helper() {
    local __nhc_text="$1" __nhc_cmd="$2"
    shift 2
    (($# < 2)) || set -- "$1" "${2:0:32000}" # an argument has at most 128 KiB
    if [[ -n $__nhc_text ]]; then
        # A stopped syslogd must not block the helper. On a loaded node logger starts slowly: a
        # shorter limit would write the text twice.
        if ! type -P logger >/dev/null || ! printf '%s\n' "$__nhc_text" | timeout -k 1 1 logger -p daemon.err -t "$NAME[$$]"; then
            __nhc_event syslog "$__nhc_text"
            __nhc_event flush
        fi
    fi
    eval "$__nhc_cmd \"\$@\""
}

# __nhc_ask QUESTION WORD...: makes the supervisor do it. The answer is a series of "log TEXT", "die
# CODE TEXT" and "array NAME TEXT" (each line is an item), closed by "status N". A check uses the
# settings that its line has made before it, except in a subshell, which may outlive that line.
__nhc_ask() {
    local __nhc_id __nhc_code __nhc_text __nhc_i=0
    local -a __nhc_got __nhc_say=()
    [[ $1 != native || $BASH_SUBSHELL != 0 ]] || __nhc_settings
    __nhc_question
    __nhc_event "$1" "$__nhc_id" "$PWD" "${CHECK-}" "${@:2}"
    __nhc_answer || return 1
    while [[ ${__nhc_got[__nhc_i]} != status ]]; do
        if [[ ${__nhc_got[__nhc_i]} == log ]]; then
            __nhc_say+=(log '' "${__nhc_got[__nhc_i + 1]}")
            ((__nhc_i += 2))
        else
            __nhc_say+=("${__nhc_got[@]:__nhc_i:3}")
            ((__nhc_i += 3))
        fi
    done
    __nhc_code="${__nhc_got[__nhc_i + 1]}"
    for ((__nhc_i = 0; __nhc_i < ${#__nhc_say[@]}; __nhc_i += 3)); do
        __nhc_text="${__nhc_say[__nhc_i + 2]}"
        [[ -z ${__nhc_as-} ]] || __nhc_text="${__nhc_text/#"$2:"/$__nhc_as:}" # see nhc_ps_check_res
        case ${__nhc_say[__nhc_i]} in
            log) log "$__nhc_text" ;;
            array) mapfile -t "${__nhc_say[__nhc_i + 1]}" < <(printf %s "$__nhc_text") ;;
            *) die "${__nhc_say[__nhc_i + 1]}" "$__nhc_text" ;;
        esac
    done
    return "$__nhc_code"
}

# This is the library for scripts of the site, see library.sh. Until the first call each of its
# functions is a stub that loads it.
__nhc_library() {
    [[ $__nhc_have_library != 1 ]] || return 0
    __nhc_have_library=1
    . /proc/self/fd/245
}

# __nhc_load KIND FILE|TEXT...: loads the scripts of $INCDIR as LBNL NHC does: sorted, inside a
# function, with IFS empty. For a file of LBNL's own (KIND is not "site") it evaluates a text that
# restores the functions of this program, which earlier files may have replaced; later files can
# replace them again, or copy and call them. A check whose text differs afterwards is the site's.
__nhc_load() {
    local IFS='' __nhc_n
    local -a __nhc_own=() __nhc_was=() __nhc_is=() __nhc_users=(nhc_job_find_users nhc_job_user_auth)
    dbg "Loading scripts from $INCDIR..."
    __nhc_library
    __nhc_texts __nhc_was "${__nhc_users[@]}"
    while (($# > 0)); do
        if [[ $1 == site ]]; then
            dbg "Loading ${2##*/}"
            __nhc_source "$2"
        else
            eval "$2"
        fi
        shift 2
    done
    for __nhc_n in "${__nhc_checks[@]}"; do
        declare -F "$__nhc_n" >/dev/null || __nhc_native "$__nhc_n"
    done
    __nhc_texts __nhc_is "${__nhc_checks[@]}"
    __nhc_changed
    __nhc_texts __nhc_is "${__nhc_users[@]}"
    if [[ "${__nhc_was[*]-}" != "${__nhc_is[*]-}" ]]; then __nhc_site_users=1; fi
    # The shell has to run the check then, with the users that it knows.
    if [[ -n ${__nhc_site_users-}${JOBUSERS[*]-} ]]; then __nhc_own+=(check_ps_unauth_users); fi
    __nhc_event functions "${__nhc_own[@]}"
    __nhc_dump
}

# __nhc_texts ARRAY FUNCTION...: the lines of functions. They come through a memory file, which needs
# no process.
__nhc_texts() {
    builtin declare -f "${@:2}" >|/proc/self/fd/246 || builtin : # a script has removed one
    builtin mapfile -t "$1" </proc/self/fd/246
}

# __nhc_changed adds the checks in __nhc_is that __nhc_native has not made to __nhc_own.
__nhc_changed() {
    local __nhc_i __nhc_n
    for ((__nhc_i = 0; __nhc_i < ${#__nhc_is[@]}; __nhc_i++)); do
        [[ ${__nhc_is[__nhc_i]} == check_*' () ' ]] || continue
        __nhc_n="${__nhc_is[__nhc_i]%' () '}"
        case ${__nhc_is[__nhc_i + 2]-}/${__nhc_is[__nhc_i + 3]-} in
            "    __nhc_ask native $__nhc_n \"\$@\"/}" | "    ${__nhc_in_shell[$__nhc_n]-none} \"\$@\"/}") ;;
            *) __nhc_own+=("$__nhc_n") ;;
        esac
    done
}

# A script must not see the arguments of __nhc_load as its own.
__nhc_source() {
    local __nhc_file="$1"
    shift
    . "$__nhc_file"
}

# The end of the shell. The loop below ends the shell without an event. If a check line ends the
# shell it fails, and is reported now, because OFFLINE_NODE may be a function of this shell. An
# error of an expansion (an unset variable under set -u, ${X:?}) has status 127 in "bash -c", and 1
# in a script such as LBNL NHC.
__nhc_bye() {
    local __nhc_status=$? __nhc_id
    local -a __nhc_got
    [[ $BASH_SUBSHELL == 0 && $__nhc_done != 1 ]] || return
    if [[ $__nhc_status == 127 && $- != *e* && $CHECK != *exit* ]]; then __nhc_status=1; fi
    __nhc_settings
    if [[ $__nhc_busy == 1 && $__nhc_status != 0 ]]; then
        __nhc_question
        __nhc_event leaving "$__nhc_id" "$__nhc_status"
        __nhc_answer
        if [[ ${__nhc_got[0]-} == helper && -z ${__nhc_helping-} ]]; then
            __nhc_helper "${__nhc_got[1]}" "$OFFLINE_NODE" "$HOSTNAME" "${__nhc_got[2]}"
        fi
    fi
    __nhc_event exit "$__nhc_status"
}

__nhc_traps() {
    trap __nhc_bye EXIT
    trap '__nhc_signal 129 "Terminated by signal SIGHUP."' HUP
    trap '__nhc_signal 130 "Terminated by signal SIGINT."' INT
    trap '__nhc_signal 143 "Terminated by signal SIGTERM."' TERM
    trap '__nhc_signal 142 "Script timed out${CHECK:+ while executing \"$CHECK\"}."' ALRM
    trap 'if [[ $DEBUG == 1 ]]; then DEBUG=0; else DEBUG=1; fi' USR2
}

# __nhc_alone: announces a line in its own process before the line prints anything.
__nhc_own=0 # the subshell in which a line runs
__nhc_alone() {
    local __nhc_id
    local -a __nhc_got
    __nhc_question
    __nhc_event forked "$__nhc_id" "$BASHPID"
    __nhc_own=$BASH_SUBSHELL
    __nhc_answer
}

# __nhc_landed ends a line that has left its own loop: "continue 5" and "break 5" count the loop
# over commands, too, and mean the same as "continue".
__nhc_landed() {
    if [[ $__nhc_busy == 1 ]]; then
        __nhc_busy=0
        __nhc_settings
        __nhc_event end 0
    fi
}

# __nhc_parse FILE: whether bash can read a file. bash -n does not run the "shopt -s extglob" of a file that
# uses such patterns.
__nhc_parse() {
    "$BASH" -n "$1" && return
    [[ "$(<"$1")" == *'shopt -s'*extglob* ]] && "$BASH" -O extglob -n "$1" 2>/dev/null
}

# The loop over commands. All check lines run in this one function, so that the next line sees a
# line's variables, "local", positional parameters and working directory. Each line runs by sourcing
# descriptor 243, so that its "return", "break" and "continue" end only that line.
__nhc_main() {
    builtin local __nhc_op __nhc_arg __nhc_text
    local -a __nhc_files
    builtin set --
    __nhc_landed # behind the loop below, by "break 2"
    while __nhc_landed; __nhc_read 240 __nhc_op || { __nhc_done=1; [[ '' ]]; }; do
        case $__nhc_op in
            run | fork)
                if ! __nhc_read 240 CNUM || ! __nhc_read 240 CHECK; then
                    __nhc_event broken "bash cannot set CNUM and CHECK any more"
                    continue
                fi
                CHECK_DIED=0 __nhc_busy=1 __nhc_lines=${#CHECKS[*]} __nhc_began=''
                if [[ $__nhc_op == run ]]; then
                    builtin . /proc/self/fd/243
                else
                    (trap - EXIT; __nhc_alone; builtin . /proc/self/fd/243) <&0 & # with the input that bash would take away
                    builtin wait $! 2>/dev/null
                fi
                __nhc_arg=$?
                if ((__nhc_arg == 0 && ${#CHECKS[*]} > __nhc_lines)); then
                    __nhc_behind "$__nhc_lines"
                    __nhc_arg=$?
                fi
                __nhc_busy=0
                if [[ $__nhc_op$__nhc_began == run ]]; then
                    __nhc_event broken "bash cannot read the line"
                    continue
                fi
                RET=$__nhc_arg
                __nhc_settings
                __nhc_event end "$__nhc_arg"
                ;;
            set)
                __nhc_read 240 __nhc_arg
                eval "$__nhc_arg"
                ;;
            online)
                __nhc_helper '' "$ONLINE_NODE" "$HOSTNAME"
                __nhc_event end $?
                ;;
            offline)
                __nhc_read 240 CNUM # a function of the site may use them
                __nhc_read 240 CHECK
                __nhc_read 240 __nhc_arg
                __nhc_read 240 __nhc_text
                __nhc_helper "$__nhc_text" "$OFFLINE_NODE" "$HOSTNAME" "$__nhc_arg"
                __nhc_event end $?
                ;;
            load)
                __nhc_files=()
                __nhc_read 240 __nhc_arg
                while ((__nhc_arg-- > 0)) && __nhc_read 240 __nhc_text; do __nhc_files+=("$__nhc_text"); done
                __nhc_load "${__nhc_files[@]}"
                __nhc_settings
                __nhc_event end 0
                ;;
            match)
                __nhc_read 240 __nhc_arg
                (eval $__nhc_arg) # runs of blanks collapse, as in LBNL NHC
                __nhc_event end $?
                ;;
            source)
                __nhc_read 240 __nhc_arg
                if ! __nhc_text="$(__nhc_parse "$__nhc_arg" 2>&1)"; then __nhc_event broken "${__nhc_text%%$'\n'*}"; continue; fi
                . "$__nhc_arg"; __nhc_arg=$?
                __nhc_dump; __nhc_event end "$__nhc_arg"
                ;;
        esac
    done
}

__nhc_loop() {
    __nhc_done=0 __nhc_busy=0
    until [[ $__nhc_done == 1 ]]; do __nhc_main; done
    __nhc_op='' # the site may have set -e or -u
    builtin trap -p EXIT 2>/dev/null >|/proc/self/fd/246 || builtin :
    IFS= builtin read -r -d '' __nhc_op 2>/dev/null </proc/self/fd/246 || builtin :
    [[ $__nhc_op != *"-- '__nhc_bye' EXIT"* ]] || __nhc_op=''
    __nhc_event lost "$__nhc_op" # fails unless the descriptor of events is still open
    if [[ $NHC_FD_OUT == 3 ]]; then exec >&3 2>&4; fi
    builtin exit 251 # its commands are lost; through the site's own trap on EXIT, if there is one
}
