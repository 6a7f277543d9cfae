package run

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// withLibrary runs a script in a bash that has read the library, without a supervisor.
func withLibrary(t *testing.T, script string, environ ...string) string {
	t.Helper()
	const stubs = `
dbg() { [[ ${DEBUG-} != 1 ]] || echo "DEBUG:  $*"; }
die() { echo "die $*"; }
__nhc_ask() { echo "ask $* as ${__nhc_as-}"; }
show() {
    local n v
    for n; do
        local -n r="$n"
        for v in "${!r[@]}"; do printf '%s[%s]=%s\n' "$n" "$v" "${r[$v]//$'\n'/;}"; done
        unset -n r
    done
}
set -f
`
	cmd := exec.Command("bash", "-c", preludeChecks+stubs+library+libfacts+script)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, environ...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(out)
}

// The library computes the same MAX_SYS_UID as LBNL NHC itself, and as package probe.
func TestMaxSystemUIDOfLibrary(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../probe/testdata/max_sys_uid.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var wants, texts []string
	for line := range strings.Lines(string(data)) {
		want, quoted, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if want == "#" {
			continue
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(len(texts))), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		wants, texts = append(wants, want), append(texts, text)
	}
	got := strings.Fields(withLibrary(t, `
one() { LOGIN_DEFS_SRC=$1; unset MAX_SYS_UID; nhc_common_get_max_sys_uid; echo "$MAX_SYS_UID"; }
for ((i = 0; i < COUNT; i++)); do
    said="$(one "$DIR/$i" 2>/dev/null)"
    echo "${said:-error}"
done`, "DIR="+dir, "COUNT="+strconv.Itoa(len(texts))))
	if len(got) != len(wants) || len(got) < 72 {
		t.Fatalf("%d answers to %d files", len(got), len(wants))
	}
	for i, want := range wants {
		if got[i] != want {
			t.Errorf("MAX_SYS_UID of %q = %s, want %s", texts[i], got[i], want)
		}
	}
	for what, want := range map[string]string{
		"LOGIN_DEFS_SRC=/nonexistent; nhc_common_get_max_sys_uid; echo $MAX_SYS_UID $?":                   "99 1\n",
		"LOGIN_DEFS_SRC=/nonexistent MAX_SYS_UID=7; nhc_common_get_max_sys_uid; echo $MAX_SYS_UID $?":     "7 1\n",
		"LOGIN_DEFS_SRC=/dev/null MAX_SYS_UID=7; nhc_common_get_max_sys_uid; echo $MAX_SYS_UID $?":        "7 0\n",
		"LOGIN_DEFS_SRC=/proc/self/mem; nhc_common_get_max_sys_uid 2>/dev/null; echo $MAX_SYS_UID $?":     "99 0\n", // cannot be read
		"LOGIN_DEFS_SRC=/dev/fd/3; nhc_common_get_max_sys_uid 3<<<'UID_MIN 10\\00'; echo $MAX_SYS_UID":    "999\n",
		"LOGIN_DEFS_SRC=/dev/fd/3 IFS=; nhc_common_get_max_sys_uid 3<<<' UID_MIN 500'; echo $MAX_SYS_UID": "499\n",
	} {
		if got := withLibrary(t, what); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}

const dmidecode = `dmidecode() {
    printf '%s\n' '# dmidecode 3.3' '' 'Handle 0x0000, DMI type 0, 26 bytes' 'BIOS Information' $'\tVendor: ACME' \
        $'\tCharacteristics:' $'\t\tPCI is supported' $'\tROM Size: 16 MB' '' 'Handle 0x0011, DMI type 17, 40 bytes' \
        'Memory Device' $'\tSize: 64 GB' '' 'Handle 0xFEFF, DMI type 127, 4 bytes' 'End Of Table'
}
`

const someSockets = `SS_CMD=sockets
sockets() {
    echo 'Netid State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process'
    echo 'u_str LISTEN 0 128 /run/x.sock 1234 * 0 users:(("dbus-daemon",pid=7,fd=3)) <->'
    echo 'u_dgr UNCONN 0 0 /dev/log 77 * 0'
    echo 'tcp ESTAB 0 0 10.0.0.1:22 10.0.0.9:5000 users:(("sshd",pid=99,fd=3)) timer:(keepalive,1min,0) uid:54321 ino:5 sk:6 <->'
    echo 'tcp LISTEN 0 128 *:22 *:* users:(("sshd",pid=9,fd=3)) ino:5'
}
`

// This is LBNL NHC's recorded output (1.4.3, str_clean of dev), except for sockets: with today's ss
// its PID is "pid=99", and it has no user for root's sockets.
func TestFunctionsOfLibrary(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "other.conf")
	if err := os.WriteFile(conf, []byte("* || one a\n#* || no\nn2 || two\n  n1 ||four || five \r\n|| x\nplain\n* ||\n* || z\\\n y"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ script, want string }{
		{dmidecode + "nhc_dmi_gather_data; show DMI_HANDLES DMI_HANDLE_LOOKUP DMI_TYPE_IDS DMI_TYPE_STRINGS DMI_TYPE_HANDLES DMI_DATA", `DMI_HANDLES[0]=0x0000
DMI_HANDLES[1]=0x0011
DMI_HANDLES[2]=0xFEFF
DMI_HANDLE_LOOKUP[0]=0
DMI_HANDLE_LOOKUP[17]=1
DMI_HANDLE_LOOKUP[65279]=2
DMI_TYPE_IDS[0]=0
DMI_TYPE_IDS[17]=17
DMI_TYPE_IDS[65279]=127
DMI_TYPE_STRINGS[0]=BIOS Information
DMI_TYPE_STRINGS[17]=Memory Device
DMI_TYPE_STRINGS[65279]=End Of Table
DMI_TYPE_HANDLES[0]= 0x0000
DMI_TYPE_HANDLES[17]= 0x0011
DMI_TYPE_HANDLES[127]= 0xFEFF
DMI_DATA[0]=BIOS Information: Vendor: ACME;BIOS Information: Characteristics:;BIOS Information: Characteristics: PCI is supported;BIOS Information: ROM Size: 16 MB
DMI_DATA[17]=Memory Device: Size: 64 GB
DMI_DATA[65279]=
`},
		{"type() { return 1; }; nhc_dmi_gather_data; echo $?", "1\n"},
		{"nhc_file_stat /proc/self q; nhc_file_stat /dev/null r; nhc_file_stat /proc/self s; echo $q $r $s; nhc_file_stat /nonexistent t e 2>/dev/null; echo \"$? $t $e\"; show NHC_STAT_FILES;" +
			"echo ${NHC_STAT_MODE[1]} ${NHC_STAT_SIZE[1]} ${NHC_STAT_USER[1]} ${NHC_STAT_UID[1]} ${NHC_STAT_GROUP[1]} ${NHC_STAT_MAJOR[1]} ${NHC_STAT_MINOR[1]} ${NHC_STAT_REALNAME[1]}",
			"0 1 0\n1  \nNHC_STAT_FILES[0]=/proc/self\nNHC_STAT_FILES[1]=/dev/null\n0666 0 root 0 root 0x1 0x3 '/dev/null'\n"},
		{someSockets + "nhc_sockets_gather_data; show NET_STR", `NET_STR[0]=unix.STREAM/dbus-daemon[7]:  /run/x.sock (LISTEN)
NET_STR[1]=unix.DGRAM/unknown[0]:  /dev/log (UNCONN)
NET_STR[2]=tcp/sshd[99]:  10.0.0.1:22 -> 10.0.0.9:5000 (ESTABLISHED)
NET_STR[3]=tcp/root[0]/sshd[9]:  *:22 -> *:* (LISTEN)
`},
		{"SS_CMD=/nonexistent; nhc_sockets_gather_data; echo $?", "1\n"},
		{"IFS=' '; str_clean -w -O '  a  b  '; str_clean -l -O '  x'; str_clean -m -O ' a   b 	c'; str_clean -c -O 'a # b'; str_clean -1 -m -O 'a 	 	b'; str_clean -W xy -l -O xa",
			" a  b \n x\n a b c\na \na \t \tb\na\n"},
		{"v='  z  '; str_clean -w -s v; str_clean -o w -m 'a   b'; echo \"[$v][$w]\"; str_clean -q x; echo $?; str_clean -o; echo $?",
			"[ z ][a b]\ndie 1 str_clean:  Invalid option:  -q\n1\ndie 1 str_clean:  Option -o requires an argument.\n1\n"},
		{"f() { bash_stack_trace; }; __nhc_inner() { f; }; g() { __nhc_inner; }; g | sed 's/ at .*//'", "[BT]:  f()\n[BT]:  g()\n"},
		{"shopt -s extdebug; f() { bash_stack_trace; }; g() { f 'a b' c; }; g 1 2 | sed 's/ at .*//'", "[BT]:  f(\"a b\", c)\n[BT]:  g(1, 2)\n"},
		{"DEBUG=0; toggle_debug_mode; echo $DEBUG; toggle_debug_mode; echo $DEBUG",
			"DEBUG:  NHC DEBUG mode turned on via SIGUSR2.\n1\nDEBUG:  NHC DEBUG mode turned off via SIGUSR2.\n0\n"},
		{"toggle_bash_tracing 2>/dev/null; [[ $- == *x* ]] && echo on; toggle_bash_tracing; [[ $- == *x* ]] || echo off; exec 2>/dev/null", "on\noff\n"},
		{"kill_watchdog; echo $?", "0\n"},
		{"HOSTNAME=n1; nhc_load_conf " + conf + "; show CHECKS", "CHECKS[0]=one a\nCHECKS[1]=four || five\nCHECKS[2]=z y\n"},
		{"nhc_ps_check_res check_mine 3 -f -m /x/ 5G; nhc_ps_check_res check_mine 9; echo $?",
			"ask native check_ps_physmem -f -m /x/ 5G as check_mine\ndie 1 check_mine:  Invalid kind \"9\" of nhc_ps_check_res; want 1, 2, 3 or 4\n1\n"},
	} {
		if diff := cmp.Diff(c.want, withLibrary(t, c.script)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.script, diff)
		}
	}
}

// The missing functions of LBNL NHC are internal steps of its program.
func TestLackedFunctions(t *testing.T) {
	t.Parallel()
	want := []string{
		"nhcmain_check_concurrency", "nhcmain_check_conffile", "nhcmain_detach", "nhcmain_finalize_env", "nhcmain_find_rm", "nhcmain_help",
		"nhcmain_init_env", "nhcmain_load_scripts", "nhcmain_load_sysconfig", "nhcmain_parse_cmdline", "nhcmain_redirect_output",
		"nhcmain_run_checks", "nhcmain_set_watchdog", "nhcmain_spawn_detached", "nhcmain_watchdog_timer", "sleep_wait",
	}
	if diff := cmp.Diff(want, LackedFunctions()); diff != "" {
		t.Errorf("LackedFunctions (-want +got):\n%s", diff)
	}
}

func TestProvidedFunctions(t *testing.T) {
	t.Parallel()
	texts := listProvided()
	names := slices.Sorted(maps.Keys(texts))
	script := "unset -f show " + strings.Join(names, " ") + "\n"
	for _, name := range names {
		script += texts[name]
	}
	got := withLibrary(t, script+"declare -F | cut -d' ' -f3 | LC_ALL=C sort")
	if diff := cmp.Diff(strings.Join(names, "\n")+"\n", got); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
	for _, name := range []string{"die", "mcheck", "array_push", "nhc_ps_gather_data", "nhc_common_unparse_size"} {
		if texts[name] == "" {
			t.Errorf("no text of %s", name)
		}
	}
}
