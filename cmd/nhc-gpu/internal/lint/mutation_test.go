package lint

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
)

// goodLines is an nhc.conf without a mistake.
const goodLines = `# gpu nodes
*           || MAX_SYS_UID=999
*           || check_fs_mount_rw -f /
*           || check_fs_used / 90%
{gpu[01-16]} || check_hw_cpuinfo 2 96 192
{gpu[01-16]} || check_hw_physmem 2TB 2TB 3%
{gpu[01-16]} || check_gpu_count 8
/^gpu0[1-4]$/ || check_hw_ib 400 mlx5_0:1
!login*     || check_ps_service -u root -S cron
*           || check_cmd_output -t 5 -r 0 -m '/^(Permissive|Disabled)$/' getenforce
gpu*        || [ "$(ls /proc/driver/nvidia/gpus | wc -l)" -eq 8 ] || \
               die 1 "not all GPUs"
`

// goodSettings is a sysconfig file without a mistake.
const goodSettings = `# settings
TIMEOUT=30
export MARK_OFFLINE=1
LOGFILE=/var/log/nhc.log
NHC_RM=slurm
`

// goodShell is a sysconfig file with the grammar of bash.
const goodShell = `export TIMEOUT=24 MARK_OFFLINE=0
DETACHED_MODE=0 NHC_CHECK_ALL=1
SILENT=1;VERBOSE=0
SLURM_RECHECK=600 \
NHC_CHECK_FORKED=0
if [ -e /etc/debian_version ]; then TS=1; CONFDIR=/etc/nhc
CONFFILE=/etc/nhc/debian.conf
else CONFFILE=/etc/nhc/rhel.conf
fi
text="TIMEOUT = 30
MARK_OFFLINE=yes"
timeout=20
[ "$timeout" = 20 ] || echo "TIMEOUT: 30" >&2
host=$(hostname -s 2>/dev/null) 2>/dev/null
case $host in login*) INCDIR=/etc/nhc/login ;; *) INCDIR=/etc/nhc/scripts ;; esac
LOGFILE=">>/var/log/nhc.log 2>&1"
files=(/etc/nhc/*.conf) 2>/dev/null
export empty= 2>/dev/null
PATH=/sbin:/bin
PATH=$PATH:/usr/sbin
IFS= read -r line </proc/uptime
: >/dev/null
>/dev/null
`

// mutation is a good file with one mistake.
type mutation struct {
	name     string
	old, bad string // bad replaces old; without old it is one more line
	want     string // LINE:COLUMN of the finding; the word
	grade    grade
	fix      string // a part of it
}

// lineMutations are mistakes in nhc.conf.
var lineMutations = []mutation{
	// targets
	{"a range in a glob", "{gpu[01-16]} || check_gpu_count", "gpu[01-16] || check_gpu_count", `7:4 [01-16]`, mistake, "{gpu[01-16]}"},
	{"a list in a glob", "{gpu[01-16]} || check_gpu_count", "gpu[1,3] || check_gpu_count", `7:4 [1,3]`, mistake, "{gpu[1,3]}"},
	{"hosts with commas", "{gpu[01-16]} || check_gpu_count", "gpu01,gpu02 || check_gpu_count", `7:6 ,`, mistake, "{gpu01,gpu02}"},
	{"hosts with blanks", "{gpu[01-16]} || check_gpu_count", "gpu01 gpu02 || check_gpu_count", `7:6  `, mistake, "{gpu01,gpu02}"},
	{"braces of bash", "{gpu[01-16]} || check_gpu_count", "gpu{01..16} || check_gpu_count", `7:4 {01..16}`, mistake, "{gpu[01-16]}"},
	{"alternatives of bash", "{gpu[01-16]} || check_gpu_count", "gpu{01,02} || check_gpu_count", `7:4 {`, mistake, "{gpu[01-16],login1}"},
	{"brace not closed", "{gpu[01-16]} || check_gpu_count", "{gpu[01-16] || check_gpu_count", `7:1 {`, mistake, "{gpu[01-16]}"},
	{"bracket not closed in a range", "{gpu[01-16]} || check_gpu_count", "{gpu[01-16} || check_gpu_count", `7:2 gpu[01-16`, mistake, "brackets"},
	{"blank in a range", "{gpu[01-16]} || check_gpu_count", "{gpu[01-16], login1} || check_gpu_count", `7:13  login1`, mistake, "{gpu[01-16],login1}"},
	{"empty member in a range", "{gpu[01-16]} || check_gpu_count", "{gpu[01-16],} || check_gpu_count", `7:12 ,`, mistake, "{gpu[01-16]}"},
	{"dots in a range", "{gpu[01-16]} || check_gpu_count", "{gpu[01..16]} || check_gpu_count", `7:2 gpu[01..16]`, mistake, "{gpu[01-16]}"},
	{"wildcard in a range", "{gpu[01-16]} || check_gpu_count", "{gpu*} || check_gpu_count", `7:2 gpu*`, mistake, "gpu*"},
	{"! in a range", "{gpu[01-16]} || check_gpu_count", "{!gpu01} || check_gpu_count", `7:2 !gpu01`, mistake, "!{gpu01}"},
	{"range without brackets", "{gpu[01-16]} || check_gpu_count", "{gpu01-gpu16} || check_gpu_count", `7:2 gpu01-gpu16`, warning, "{gpu[01-16]}"},
	{"range the wrong way round", "{gpu[01-16]} || check_gpu_count", "{gpu[16-01]} || check_gpu_count", `7:2 16-01`, remark, "{gpu[01-16]}"},
	{"range in a regular expression", "/^gpu0[1-4]$/", "/^gpu[01-16]$/", `8:6 [01-16]`, mistake, "{gpu[01-16]}"},
	{"regular expression without slashes", "/^gpu0[1-4]$/", "^gpu0[1-4]$", `8:1 ^gpu0[1-4]$`, mistake, "/^gpu0[1-4]$/"},
	{"dot-star in a glob", "gpu*        ||", "gpu.*        ||", `11:4 .*`, warning, "gpu*"},
	{"star of a glob in a regular expression", "/^gpu0[1-4]$/", "/^gpu*$/", `8:5 u*`, warning, "/^gpu.*$/"},
	{"star first", "/^gpu0[1-4]$/", "/*gpu/", `8:2 *`, mistake, "/.*gpu/"},
	{"regular expression without its end", "/^gpu0[1-4]$/", "/^gpu0[1-4]$", `8:1 /`, mistake, "/^gpu0[1-4]$/"},
	{"flag behind a regular expression", "/^gpu0[1-4]$/", "/^gpu0[1-4]$/i", `8:14 i`, mistake, "/^gpu0[1-4]$/"},
	{"bracket of a regular expression", "/^gpu0[1-4]$/", "/^gpu0(1|4$/", `8:1 /^gpu0(1|4$/`, mistake, "balance"},
	{"range of numbers in a regular expression", "/^gpu0[1-4]$/", "/^gpu0[1-5][01-02]/", `8:12 [01-02]`, mistake, "/^gpu0[1-5](01|02)/"},
	{"range of letters the wrong way round", "/^gpu0[1-4]$/", "/^gpu0[z-a]$/", `8:7 [z-a]`, mistake, "[a-z]"},
	{`\d of Perl`, "/^gpu0[1-4]$/", `/^gpu\\d+$/`, `8:6 \d`, mistake, "[0-9]"},
	{"(?: of Perl", "/^gpu0[1-4]$/", `/^gpu(?:01|02)$/`, `8:6 (?`, mistake, "without (?"},
	{"one backslash", "/^gpu0[1-4]$/", `/^gpu01\.cluster$/`, `8:8 \.`, warning, `\\.`},
	{"alternatives in a glob", "gpu*        ||", "gpu*|login* ||", `11:5 |`, mistake, "/^(gpu.*|login.*)$/"},
	{"parentheses in a glob", "gpu*        ||", "(gpu|login)* ||", `11:1 (`, mistake, "@(gpu|login)*"},
	{"bracket not closed in a glob", "gpu*        ||", "gpu[01 ||", `11:4 [`, mistake, "gpu01"},
	{"blank behind !", "!login*", "! login*", `9:2 ! `, mistake, "!login*"},
	{"two !", "!login*", "!!login*", `9:1 !!`, mistake, "login*"},
	{"! behind the pattern", "!login*", "login!*", `9:6 !`, mistake, "!login*"},
	{"!* as target", "!login*", "!*", `9:1 !*`, warning, "#"},
	{"- as target", "!login*", "-", `9:1 -`, mistake, "* for every host"},
	{"all as target", "!login*", "all", `9:1 all`, mistake, "* for every host"},
	{"a character no host has", "!login*", "%login", `9:1 %`, mistake, "remove it"},
	{"no target", "*           || check_fs_used / 90%", "check_fs_used / 90% || true", `4:1 check_fs_used`, mistake, "* || check_fs_used"},
	{"empty target", "*           || check_fs_used", "|| check_fs_used", `4:1 ||`, mistake, "* || check_fs_used / 90%"},
	{"empty check", "*           || check_fs_used / 90%", "* ||", `4:3 ||`, mistake, "write a check"},
	{"neither target nor check", "*           || check_fs_used / 90%", "||", `4:1 ||`, mistake, "remove the line"},

	// the separator, and what editors do
	{"| for ||", "*           || check_fs_used", "* | check_fs_used", `4:3 |`, mistake, "* || check_fs_used / 90%"},
	{"&& for ||", "*           || check_fs_used", "* && check_fs_used", `4:3 &&`, mistake, "* || check_fs_used / 90%"},
	{": for ||", "*           || check_fs_used", "* : check_fs_used", `4:3 :`, mistake, "* || check_fs_used / 90%"},
	{"no separator", "*           || check_fs_used", "* check_fs_used", `4:1 *`, mistake, "* || check_fs_used / 90%"},
	{"a check alone", "*           || check_fs_used", "check_fs_used", `4:1 check_fs_used`, mistake, "* || check_fs_used / 90%"},
	{"||| for ||", "*           || check_fs_used", "* ||| check_fs_used", `4:5 |`, mistake, "check_fs_used / 90%"},
	{"|| twice", "*           || check_fs_used", "* || || check_fs_used", `4:6 |`, mistake, "check_fs_used / 90%"},
	{"a separator too late", "*           || check_fs_used / 90%", "* | check_fs_used / 90% || true", `4:2  `, mistake, "* || check_fs_used"},
	{"comment of C", "# gpu nodes", "// gpu nodes", `1:1 //`, mistake, "# gpu nodes"},
	{"comment of C behind which a check stands", "# gpu nodes", "// gpu* || true", `1:1 //`, mistake, "# gpu"},
	{"comment that joins the next line", "# gpu nodes", `# gpu nodes \`, `1:13 \`, mistake, "remove the backslash"},
	{"check that is a comment", "*           || check_fs_used", "* || # check_fs_used", `4:6 #`, warning, "#"},
	{"blank behind the last backslash", `|| \`, `|| \ `, `11:70 \ `, mistake, "remove the blank"},
	{"no-break space in the target", "gpu*        ||", "gpu*\u00a0||", "11:5 \u00a0", mistake, "gpu* ||"},
	{"zero-width space", "gpu*        ||", "gpu\u200b* ||", "11:4 \u200b", mistake, "gpu* ||"},
	{"byte order mark", "# gpu nodes\n", "\ufeff* || true\n", "1:1 \ufeff", mistake, "* || true"},
	{"full-width bars", "gpu*        ||", "gpu* ｜｜", "11:6 ｜", mistake, "gpu* ||"},
	{"typographic quotes", `'/^(Permissive|Disabled)$/'`, `“/^(Permissive|Disabled)$/”`, "10:46 “", mistake, `"/^(Permissive|Disabled)$/"`},
	{"typographic quotes in a setting without a target", "# gpu nodes", "ARGS=“diag -r 1“", "1:6 “", mistake, `* || ARGS="diag -r 1"`},
	{"a dash for an option", "check_fs_mount_rw -f", "check_fs_mount_rw –f", "3:34 –", mistake, "-f /"},
	{"CR LF", "# gpu nodes\n", "# gpu nodes\r\n", `1:0 `, remark, "dos2unix"},
	{"section of an INI file", "# gpu nodes", "[checks]", `1:1 [checks]`, mistake, "# [checks]"},

	// values that no device can have
	{"a temperature out of reach", "check_gpu_count 8", "check_gpu_temp 850", `7:32 850`, mistake, "check_gpu_temp"},
	{"a temperature of no busy GPU", "check_gpu_count 8", "check_gpu_temp 20", `7:32 20`, mistake, "check_gpu_temp"},
	{"0%", "check_fs_used / 90%", "check_fs_used / 0%", `4:32 0%`, mistake, "check_fs_used"},
	{"a percentage without its sign", "check_fs_used / 90%", "check_fs_used / 90", `4:32 90`, warning, "check_fs_used / 90%"},
	{"a size without its unit", "check_fs_used / 90%", "check_fs_free / 500", `4:32 500`, warning, "check_fs_free / 500G"},
	{"memory without its unit", "check_hw_physmem 2TB 2TB 3%", "check_hw_physmem_free 5", `6:39 5`, warning, "check_hw_physmem_free 5G"},
	{"a bandwidth in MB/s", "check_gpu_count 8", "check_gpu_bandwidth 48000", `7:37 48000`, mistake, "check_gpu_bandwidth"},
	{"a bandwidth of an adapter in Mb/s", "check_gpu_count 8", "check_ib_bw 380000", `7:29 380000`, mistake, "check_ib_bw"},
	{"a rate that no port has", "check_hw_ib 400 mlx5_0:1", "check_hw_ib 450 mlx5_0:1", `8:30 450`, warning, "400 or 600"},
	{"a least rate that no port has", "check_hw_ib 400 mlx5_0:1", "check_ib_ports -r 450", `8:36 450`, warning, "400 or 600"},
	{"an age without its unit", "check_gpu_count 8", "check_gpu_gemm --max-age 24", `7:42 24`, warning, "--max-age 24h"},
	{"an age behind =, without its unit", "check_gpu_count 8", "check_gpu_gemm --max-age=24", `7:42 24`, warning, "--max-age=24h"},
	{"a command with more time than the run", "-t 5 -r 0", "-t 60 -r 0", `10:36 60`, mistake, "-t 29"},
	{"options without a command", "-t 5 -r 0 -m '/^(Permissive|Disabled)$/' getenforce", "-m /active/ -t 5", `10:16 check_cmd_output`, mistake, "check_cmd_output"},
	{"a regular expression without its end", "'/^(Permissive|Disabled)$/'", "/active", `10:46 /active`, warning, "-m /active/ getenforce"},
	{"an anchored expression without its end", "'/^(Permissive|Disabled)$/'", "'!/^a/b'", `10:46 !/^a/b`, warning, "!/^a/b/"},
	{"an expression without its beginning", "'/^(Permissive|Disabled)$/'", "'^active/'", `10:46 ^active/`, warning, "/^active/"},
	{"a flag behind an expression", "'/^(Permissive|Disabled)$/'", "/active/i", `10:46 /active/i`, warning, "-m /active/ getenforce"},
	{"more lanes than a slot has", "check_gpu_count 8", "check_gpu_pcie 5 160", `7:34 160`, mistake, "check_gpu_pcie"},
	{"more than 100%", "check_fs_used / 90%", "check_fs_used / 110%", `4:32 110%`, mistake, "check_fs_used"},
	{"a percentage without its sign, of all file systems", "check_fs_used / 90%", "check_all_fs_used xfs 90", `4:38 90`, warning, "check_all_fs_used xfs 90%"},
	{"more than 100% free", "check_fs_used / 90%", "check_fs_free / 110%", `4:32 110%`, mistake, "check_fs_free"},
	{"an option behind the service", "-u root -S cron", "cron -u root", `9:38 -u`, warning, "options first: check_ps_service"},
	{"sshd by its name", "-u root -S cron", "-u root -S sshd", `9:44 sshd`, warning, "-S -f -m '@(*/sshd|*/sshd *)' sshd"},
	{"sshd by its program", "-u root -S cron", "-u root -d sshd ssh", `9:49 ssh`, warning, "-d sshd -f -m '@(*/sshd|*/sshd *)' ssh"},
	{"a system user without -A", "check_fs_used / 90%", "check_ps_cpu -a -u root 95%", `4:35 root`, warning, "check_ps_cpu -a -u root -A 95%"},
	{"a system user's uid without -A", "check_fs_used / 90%", "check_ps_time -u0 3600", `4:30 -u0`, warning, "check_ps_time -u0 -A 3600"},
	{"an option behind a file system", "check_fs_mount_rw -f /", "check_fs_mount_rw / -t ext4", `3:36 -t`, warning, "options first: check_fs_mount_rw"},

	// the grammar of the shell
	{"quote not closed", `"not all GPUs"`, `"not all GPUs`, "12:22 \"not", mistake, "close the quote"},
	{"apostrophe", `"not all GPUs"`, `can't`, "12:25 't", mistake, "close the quote"},
	{"bracket not closed", "*           || check_fs_used", "* || (check_fs_used", "4:6 (check_fs_used", mistake, "balance"},
	{"pattern of extglob", "*           || check_fs_used /", "* || check_fs_used +(/)", "4:20 +(/)", mistake, "quote the pattern"},
	{"! without blank", "*           || check_fs_used / 90%", "* || !(check_fs_used / 90%)", "4:6 !", mistake, "-!"},
	{"if without fi", "*           || check_fs_used / 90%", "* || if [ -d / ]; then check_fs_used / 90%", "4:6 if", mistake, "fi"},
	{"line that ends in &&", "check_fs_used / 90%", "check_fs_used / 90% &&", "4:37 &", mistake, "backslash"},
	{"no ]", `-eq 8 ]`, `-eq 8`, "11:63 8", mistake, "]"},
	{"] without a blank", `-eq 8 ]`, `-eq 8]`, "11:63 8]", mistake, "8 ]"},
	{"[ without a blank", `[ "$(ls /proc/driver/nvidia/gpus | wc -l)" -eq 8 ]`, `[-d /proc ]`, "11:16 [-d", mistake, "[ -d"},
	{"blanks around =", "MAX_SYS_UID=999", "MAX_SYS_UID = 999", "2:28 =", mistake, "MAX_SYS_UID=999"},
	{"export with blanks", "MAX_SYS_UID=999", "export MAX_SYS_UID = 999", "2:35 =", mistake, "NAME=VALUE"},
	{"set for an assignment", "MAX_SYS_UID=999", "set MAX_SYS_UID=999", "2:16 set", mistake, "MAX_SYS_UID=999"},
	{"a check that is assigned", "check_gpu_count 8", "check_gpu_count=8", "7:17 check_gpu_count=", mistake, "check_gpu_count 8"},
	{"= behind a check", "check_gpu_count 8", "check_gpu_count = 8", "7:33 =", mistake, "check_gpu_count 8"},
	{"= before a number", "check_gpu_count 8", "check_gpu_count =8", "7:33 =8", mistake, "check_gpu_count 8"},
	{"! before a check", "|| check_fs_used", "|| ! check_fs_used", "4:16 !", mistake, "options of the check"},
	{"a check that may fail", "|| check_fs_used / 90%", "|| check_fs_used / 90% || true", "4:36 ||", warning, "[policy.check_fs_used]"},
	{"a check for another", "|| check_fs_used / 90%", "|| check_fs_used / 90% || check_fs_free / 1G", "4:36 ||", warning, "two lines"},
	{"two checks in a line", "|| check_fs_used / 90%", "|| check_fs_used / 90% && check_fs_free / 1G", "4:36 &&", remark, "two lines"},
	{"a condition before a check", "|| check_fs_used / 90%", "|| [ -d /scratch ] && check_fs_used /scratch 90%", "4:32 &&", warning, "if [ -d /scratch ]; then check_fs_used"},
	{"a condition before die", "|| check_fs_used / 90%", `|| [ -e /bad ] && die 1 "bad"`, "4:28 &&", warning, "if [ -e /bad ]; then die"},
	{"a check in the background", "check_fs_used / 90%", "check_fs_used / 90% &", "4:36 &", warning, "remove the &"},
	{"a check in a pipe", "check_fs_used / 90%", "check_fs_used / 90% | cat", "4:36 |", remark, "remove the pipe"},
	{"a check by sudo", "check_fs_used", "sudo check_fs_used", "4:21 check_fs_used", mistake, "without sudo"},
	{"a check in another shell", "check_fs_used / 90%", "bash -c 'check_fs_used / 90%'", "4:24 check_fs_used / 90%", mistake, "without bash"},
	{"> for a limit", "check_fs_used / 90%", "check_fs_used / > 90%", "4:32 > 90%", mistake, "remove the >"},
	{"exit", "|| check_fs_used / 90%", "|| exit 0", "4:16 exit", warning, "remove the line"},
	{"options without a check", "check_fs_mount_rw -f /", "-f /", "3:16 -f", mistake, "the name of the check"},

	// names of checks
	{"misspelt check", "check_fs_used", "check_fs_usd", "4:16 check_fs_usd", mistake, "check_fs_used"},
	{"misspelt check in a shell line", "|| check_fs_used / 90%", "|| if [ -d / ]; then check_fs_usd / 90%; fi", "4:34 check_fs_usd", mistake, "check_fs_used"},
	{"check in capitals", "check_fs_used", "CHECK_FS_USED", "4:16 CHECK_FS_USED", mistake, "check_fs_used"},
	{"check with dashes", "check_fs_used", "check-fs-used", "4:16 check-fs-used", mistake, "check_fs_used"},
	{"check without check_", "check_fs_used", "fs_used", "4:16 fs_used", mistake, "check_fs_used"},
	{"check of another product", "check_fs_used", "check_disk_space", "4:16 check_disk_space", remark, "define check_disk_space"},

	// arguments
	{"unknown option", "check_fs_mount_rw -f", "check_fs_mount_rw -X -f", "3:34 -X", mistake, "check_fs_mount_rw"},
	{"option of another check", "check_fs_used / 90%", "check_ps_cpu -x 90%", "4:29 -x", mistake, "check_ps_cpu"},
	{"option without its value", "check_fs_mount_rw -f /", "check_fs_mount_rw -f", "3:34 -f", mistake, "check_fs_mount_rw"},
	{"long option", "check_fs_mount_rw -f /", "check_fs_mount_rw --fs /", "3:34 --fs", mistake, "check_fs_mount_rw"},
	{"argument too many", "check_gpu_count 8", "check_gpu_count 8 nvidia 9", "7:42 9", mistake, "check_gpu_count"},
	{"argument that nothing is done with", "check_fs_used / 90%", "check_fs_used / 90 %", "4:35 %", warning, "check_fs_used"},
	{"argument too many, in braces", "check_fs_used / 90%", "check_hw_eth {lo,eth0}", "4:29 eth0", warning, "check_hw_eth"},
	{"two numbers in braces", "check_gpu_count 8", "check_gpu_count {8,9}", "7:33 9", mistake, "check_gpu_count"},
	{"misspelt vendor", "check_gpu_count 8", "check_gpu_count 8 nvida", "7:35 nvida", mistake, "check_gpu_count"},
	{"words for a number", "check_gpu_count 8", "check_gpu_count eight", "7:33 eight", mistake, "check_gpu_count"},
	{"unit behind a number", "check_gpu_count 8", "check_gpu_count 8x", "7:33 8x", mistake, "check_gpu_count"},
	{"plural of a unit", "check_hw_physmem 2TB 2TB", "check_hw_physmem 2TiBs 2TB", "6:34 2TiBs", mistake, "check_hw_physmem 2T 2TB 3%"},
	{"binary unit of another tool", "check_hw_physmem 2TB 2TB", "check_hw_physmem 2TiB 2TB", "6:34 2TiB", mistake, "check_hw_physmem 2T 2TB 3%"},
	{"unit of a temperature", "check_gpu_count 8", "check_gpu_temp 90C", "7:32 90C", mistake, "check_gpu_temp 90"},
	{"unit of a power", "check_gpu_count 8", "check_gpu_power 600W", "7:33 600W", mistake, "check_gpu_power 600"},
	{"binary units of another tool", "check_hw_physmem 2TB 2TB 3%", "check_hw_physmem 2TiB 2TiB 3GiB", "6:34 2TiB", mistake, "check_hw_physmem 2T 2T 3G"},
	{"decimal comma", "check_hw_physmem 2TB 2TB", "check_hw_physmem 1,5TB 2TB", "6:34 1,5TB", mistake, "check_hw_physmem 1.5T 2TB 3%"},
	{"percentage for a size", "check_hw_physmem 2TB 2TB 3%", "check_hw_physmem 97% 2TB 3%", "6:34 97%", mistake, "check_hw_physmem"},
	{"minimum above the maximum", "check_hw_physmem 2TB 2TB", "check_hw_physmem 2TB 1TB", "6:34 2TB", mistake, "check_hw_physmem"},
	{"swapped arguments of a path", "check_fs_used / 90%", "check_fs_used 90% /", "4:30 90%", mistake, "check_fs_used / 90%"},
	{"swapped arguments of a port", "check_hw_ib 400 mlx5_0:1", "check_hw_ib mlx5_0:1 400", "8:30 mlx5_0:1", mistake, "check_hw_ib 400 mlx5_0:1"},
	{"arithmetic without $(( ))", "|| check_fs_used / 90%", "|| check_ps_loadavg 2*HW_CORES", "4:33 2*HW_CORES", mistake, "check_ps_loadavg"},
	{"port without its number", "check_hw_ib 400 mlx5_0:1", "check_hw_ib 400 mlx5_0", "8:34 mlx5_0", mistake, "check_hw_ib"},
	{"cores of one socket", "check_hw_cpuinfo 2 96 192", "check_hw_cpuinfo 2 96 48", "5:39 48", mistake, "check_hw_cpuinfo"},
	{"octal number", "check_hw_cpuinfo 2 96 192", "check_hw_cpuinfo 2 096 192", "5:36 096", mistake, "check_hw_cpuinfo 2 96 192"},
	{"limit that is missing", "check_fs_used / 90%", "check_fs_used /", "4:16 check_fs_used", warning, "check_fs_used FS MAX"},
	{"maximum that is missing", "check_hw_physmem 2TB 2TB 3%", "check_hw_physmem 2TB", "6:17 check_hw_physmem", mistake, "check_hw_physmem MIN MAX"},
	{"device that is missing", "|| check_fs_used / 90%", "|| check_hw_eth", "4:16 check_hw_eth", mistake, "check_hw_eth DEVICE"},
	{"daemon that is missing", "|| check_fs_used / 90%", "|| check_ps_daemon", "4:16 check_ps_daemon", mistake, "check_ps_daemon DAEMON"},
	{"maximum of the swap space that is missing", "|| check_fs_used / 90%", "|| check_hw_swap 0", "4:16 check_hw_swap", warning, "check_hw_swap MIN MAX"},
	{"relative path", "check_fs_used / 90%", "check_fs_used tmp 90%", "4:30 tmp", warning, "check_fs_used FS MAX"},
	{"mount point of LBNL NHC's genconf", "-f /\n", "-f /mnt/my040dir\n", "3:37 /mnt/my040dir", warning, `check_fs_mount_rw -f "/mnt/my dir"`},
	{"mount point as in fstab", "check_fs_used /", `check_fs_used "/mnt/my\040dir"`, "4:30 /mnt/my040dir", warning, `check_fs_used "/mnt/my dir" 90%`},
	{"mount point as in fstab, two backslashes", "-f /\n", `-f '/mnt/1\\0402'` + "\n", `3:37 /mnt/1\0402`, warning, `check_fs_mount_rw -f '/mnt/1 2'`},
	{"service without a name", "check_ps_service -u root -S cron", "check_ps_service -u root -S", "9:16 check_ps_service", mistake, "check_ps_service"},
	{"file system without -f", "check_fs_mount_rw -f /", "check_fs_mount_rw -t xfs", "3:16 check_fs_mount_rw", mistake, "check_fs_mount_rw"},
	{"seconds with a unit", "check_cmd_output -t 5", "check_cmd_output -t 5s", "10:36 5s", mistake, "-t 5 -r"},
	{"regular expression of an option", "'/^(Permissive|Disabled)$/'", "'/^(Permissive|Disabled$/'", "10:46 /^(Permissive|Disabled$/", mistake, "check_cmd_output"},
	{"permission bits", "|| check_fs_used / 90%", "|| check_file_stat -m 0788 /etc/passwd", "4:35 0788", mistake, "check_file_stat"},
	{"unknown action", "|| check_fs_used / 90%", "|| check_ps_unauth_users log sylog", "4:42 sylog", mistake, "check_ps_unauth_users"},
	{"a name for a uid", "|| check_fs_used / 90%", "|| check_ps_unauth_users -u alice log kill", "4:41 alice", mistake, "-n USER"},
	{"a pattern for a user", "|| check_fs_used / 90%", "|| check_ps_userproc_lineage -n 'svc*' log kill", "4:45 svc*", mistake, "check_ps_userproc_lineage"},
	{"check for hardware that is not supported", "check_gpu_count 8", "check_gpu_count 8 amd", "7:17 check_gpu_count", warning, "remove the line"},

	{"check for hardware that is not supported, by its name", "check_gpu_count 8", "check_gpu_xgmi 10", "7:17 check_gpu_xgmi", warning, "unless a script of the site defines check_gpu_xgmi"},

	// lines
	{"line that matches no host beside others", "{gpu[01-16]} || check_gpu_count 8", "* || check_gpu_count 8\n/^gpu[02-01]/ || check_gpu_count 7", "8:6 [02-01]", mistake, "(01|02)"},
	{"line twice", "*           || check_fs_used / 90%\n", "* || check_fs_used / 90%\n* || check_fs_used / 90%\n", "5:1 *", warning, "remove one"},
	{"two limits", "", "* || check_gpu_temp 85\n* || check_gpu_temp 90", "14:6 check_gpu_temp", remark, "remove one"},
	{"lines that contradict", "", "{gpu[01-16]} || check_gpu_count 7", "13:17 check_gpu_count", warning, "target of its own"},
	{"line for all that contradicts", "", "* || check_gpu_count 7", "13:6 check_gpu_count", warning, "target of its own"},

	// settings in nhc.conf
	{"misspelt setting", "MAX_SYS_UID=999", "MAX_SYS_UIDS=999", "2:16 MAX_SYS_UIDS", warning, "MAX_SYS_UID=999"},
	{"setting that comes too late", "MAX_SYS_UID=999", "export TIMEOUT=60", "2:23 TIMEOUT", warning, "/etc/sysconfig/nhc"},
	{"wrong setting that comes too late", "MAX_SYS_UID=999", "export TIMEOUT=30s", "2:23 TIMEOUT", warning, "write TIMEOUT=30 in /etc/sysconfig/nhc"},
	{"setting of LBNL NHC alone", "MAX_SYS_UID=999", "DF_FLAGS=-Tka", "2:16 DF_FLAGS", warning, "remove it"},
	{"flags of df that exclude network file systems", "MAX_SYS_UID=999", "export DF_FLAGS=-Tkl", "2:23 DF_FLAGS", warning, "and the lines for such file systems"},
	{"yes for 1", "MAX_SYS_UID=999", "export MARK_OFFLINE=yes", "2:23 MARK_OFFLINE=yes", mistake, "MARK_OFFLINE=1"},
	{"name for a number", "MAX_SYS_UID=999", "MAX_SYS_UID=users", "2:16 MAX_SYS_UID=users", mistake, "MAX_SYS_UID="},
}

// settingMutations are mistakes in the sysconfig file.
var settingMutations = []mutation{
	{"misspelt setting in sysconfig", "TIMEOUT=30", "TIMOUT=30", "2:1 TIMOUT", warning, "TIMEOUT=30"},
	{"unit of TIMEOUT", "TIMEOUT=30", "TIMEOUT=30s", "2:1 TIMEOUT=30s", mistake, "TIMEOUT=30"},
	{"TIMEOUT beyond slurmd's", "TIMEOUT=30", "TIMEOUT=300", "2:1 TIMEOUT=300", remark, "50 or less"},
	{"blanks around = in sysconfig", "TIMEOUT=30", "TIMEOUT = 30", "2:9 =", mistake, "TIMEOUT=30"},
	{"blanks around = of an export", "TIMEOUT=30", "export TIMEOUT = 30", "2:16 =", mistake, "TIMEOUT=30"},
	{"colon for =", "TIMEOUT=30", "TIMEOUT: 30", "2:8 :", mistake, "TIMEOUT=30"},
	{"$ before a name", "TIMEOUT=30", "$TIMEOUT=30", "2:1 $TIMEOUT", mistake, "TIMEOUT=30"},
	{"true for 1", "MARK_OFFLINE=1", "MARK_OFFLINE=true", "3:8 MARK_OFFLINE=true", mistake, "MARK_OFFLINE=1"},
	{"typographic quotes in sysconfig", "TIMEOUT=30", "TIMEOUT=“30”", "2:9 “", mistake, `TIMEOUT="30"`},
	{"another number for 1", "MARK_OFFLINE=1", "MARK_OFFLINE=2", "3:8 MARK_OFFLINE=2", mistake, "MARK_OFFLINE=0 or 1"},
	{"flags of df that exclude file systems", "TIMEOUT=30", `DF_FLAGS="-Tkal -xgpfs -xfuse"`, "2:1 DF_FLAGS", warning, "and the lines for such file systems"},
	{"a long flag of df that excludes file systems", "TIMEOUT=30", `DFI_FLAGS="-Tia --exclude-type=nfs4"`, "2:1 DFI_FLAGS", warning, "and the lines for such file systems"},
	{"misspelt MODE", "TIMEOUT=30", "MOD=observe", "2:1 MOD", warning, "MODE=observe"},
	{"MODE in lower case", "TIMEOUT=30", "mode=observe", "2:1 mode", warning, "MODE=observe"},
	{"MODE with one capital", "TIMEOUT=30", "export Mode=Enforce", "2:8 Mode", warning, "MODE=enforce"},
	{"setting in lower case", "TIMEOUT=30", "timeout=30", "2:1 timeout", warning, "TIMEOUT=30"},
	{"redirection for a log", "LOGFILE=/var/log/nhc.log", "LOGFILE=>>/var/log/nhc.log 2>&1", "4:1 LOGFILE=>>/var/log/nhc.log 2>&1", mistake, `LOGFILE=">>/var/log/nhc.log 2>&1"`},
	{"second setting of a line", "TIMEOUT=30", "TIMEOUT=30 CONFIG_ERRORS=yes", "2:12 CONFIG_ERRORS=yes", mistake, "CONFIG_ERRORS=drain or unknown"},
	{"setting twice in a line", "TIMEOUT=30", "TIMEOUT=30; TIMEOUT=40", "2:13 TIMEOUT", warning, "remove one"},
	{"quote not closed in sysconfig", "TIMEOUT=30", `TIMEOUT="30`, `2:9 "30`, mistake, "balance"},
	{"setting in a condition", "TIMEOUT=30", "[ -d /proc ] && TIMEOUT=30s", "2:17 TIMEOUT=30s", mistake, "TIMEOUT=30"},
	{"two settings in one word", "TIMEOUT=30", "NHC_CHECK_ALL=1MODE=observe", "2:1 NHC_CHECK_ALL=1MODE=observe", mistake, "NHC_CHECK_ALL=1, and MODE=observe"},
	{"unit of SLURM_RECHECK", "TIMEOUT=30", "SLURM_RECHECK=30m", "2:1 SLURM_RECHECK=30m", mistake, "SLURM_RECHECK=1800"},
	{"on for time stamps", "TIMEOUT=30", "TS=on", "2:1 TS=on", mistake, "TS=1"},
	{"relative path of a library", "TIMEOUT=30", "NVML_LIBRARY=libnvidia-ml.so.1", "2:1 NVML_LIBRARY=libnvidia-ml.so.1", mistake, "NVML_LIBRARY=/usr/lib64/libnvidia-ml.so.1"},
	{"relative directory of libraries", "TIMEOUT=30", "LIBRARY_DIRS=opt/cuda", "2:1 LIBRARY_DIRS=opt/cuda", mistake, "LIBRARY_DIRS=/opt/cuda"},
	{"on for 1", "TIMEOUT=30", "DETACHED_MODE=on", "2:1 DETACHED_MODE=on", mistake, "DETACHED_MODE=1"},
	{"resource manager in capitals", "NHC_RM=slurm", "NHC_RM=SLURM", "5:1 NHC_RM=SLURM", mistake, "NHC_RM=slurm"},
	{"unknown mode", "TIMEOUT=30", "MODE=observing", "2:1 MODE=observing", mistake, "MODE=observe or enforce"},
	{"unknown value of CONFIG_ERRORS", "TIMEOUT=30", "CONFIG_ERRORS=yes", "2:1 CONFIG_ERRORS=yes", mistake, "CONFIG_ERRORS=drain or unknown"},
	{"relative path of a setting", "TIMEOUT=30", "CONFFILE=nhc.conf", "2:1 CONFFILE=nhc.conf", mistake, "CONFFILE=/etc/nhc/nhc.conf"},
	{"tables for lines", "TIMEOUT=30", "CONFFILE=/etc/nhc/nhc.toml", "2:1 /etc/nhc/nhc.toml", mistake, "TOMLFILE="},
	{"log that is a directory", "LOGFILE=/var/log/nhc.log", "LOGFILE=/var/log/", "4:1 /var/log/", mistake, "LOGFILE=/var/log/nhc.log"},
	{"result file in a public directory", "TIMEOUT=30", "RESULTFILE=/tmp/nhc.status", "2:1 /tmp/nhc.status", warning, "/var/run/nhc"},
	{"setting twice", "NHC_RM=slurm", "NHC_RM=slurm\nTIMEOUT=40", "6:1 TIMEOUT", warning, "remove one"},
	{"check line in sysconfig", "TIMEOUT=30", "* || check_fs_mount -f /", "2:1 ||", mistake, "nhc.conf"},
	{"section in sysconfig", "TIMEOUT=30", "[nhc]", "2:1 [nhc]", mistake, "# [nhc]"},
	{"CR LF in sysconfig", goodSettings, strings.ReplaceAll(goodSettings, "\n", "\r\n"), "1:0 ", mistake, "dos2unix"},
	{"trial mode left behind", "TIMEOUT=30", "SHELL=:", "2:1 SHELL=:", remark, "trial is over"},
	{"observe left behind", "TIMEOUT=30", "MODE=observe", "2:1 MODE=observe", remark, "remove it"},
	{"recorded node left behind", "TIMEOUT=30", "HOSTROOT=/tmp/node", "2:1 HOSTROOT=/tmp/node", warning, "remove it"},
}

// goodTables is an nhc.toml without a mistake.
const goodTables = `mode = "enforce"

[prolog]
budget = 10
mark = "drain"

[policy.gpu]
action = "drain"

[[check]]
name = "gpu_count"
hosts = "{gpu[01-16]}"
want = 8

[[check]]
name = "check_file_test"
test = "d"
files = ["/proc"]

[output]
jsonl = "/var/log/nhc-gpu.jsonl"
textfile = "/var/lib/prometheus/node-exporter/nhc.prom"
command = ["/usr/local/sbin/ticket", "--queue=gpu"]

[guard]
percent = 20
exempt = ["gpu.ecc", "check_ps_service"]
`

var tableMutations = []mutation{
	{"misspelt check in a table", `"gpu_count"`, `"gpu_cout"`, "11:9 gpu_cout", mistake, "check_gpu_count"},
	{"misspelt key of a check", "test = ", "tets = ", "17:1 tets", mistake, `test = "d"`},
	{"misspelt key with a number", "want = 8", "wannt = 8", "13:1 wannt", mistake, "want = 8"},
	{"policy for the beginning of no code", "[policy.gpu]", `[policy."gpu.xidd"]`, "7:14 xidd", mistake, `[policy."gpu.xid"]`},
	{"unknown mode in a table", `mode = "enforce"`, `mode = "observer"`, "1:9 observer", mistake, "observe"},
	{"mode in capitals in a table", `mode = "enforce"`, `MODE = "enforce"`, "1:1 MODE", mistake, "mode"},
	{"misspelt table", "[[check]]\nname = \"gpu_count\"", "[[checks]]\nname = \"gpu_count\"", "10:3 checks", mistake, "[[check]]"},
	{"one pair of brackets", "[[check]]\nname = \"gpu_count\"\nhosts = \"{gpu[01-16]}\"\nwant = 8\n\n[[check]]", "[check]", "10:2 check", mistake, "[[check]]"},
	{"text for a number", "want = 8", `want = "eight"`, "13:9 eight", mistake, "check_gpu_count"},
	{"number for a text", `name = "gpu_count"`, "name = 7", "11:1 name", mistake, "text in quotes"},
	{"check without a name", `name = "gpu_count"`, "", "10:1 [[check]]", mistake, "name"},
	{"unit of a budget", "budget = 10", `budget = "10s"`, "4:11 10s", mistake, "seconds"},
	{"budget out of bounds", "budget = 10", "budget = 40000", "4:1 budget", mistake, "3600"},
	{"unknown mark", `mark = "drain"`, `mark = "down"`, "5:9 down", mistake, "drain, exit"},
	{"unknown action of a policy", `action = "drain"`, `action = "reboot"`, "8:11 reboot", mistake, "none, warn, observe, drain, fail-job"},
	{"action that is nearly right", `action = "drain"`, `action = "warning"`, "8:11 warning", mistake, "warn"},
	{"strikes the wrong way round", `action = "drain"`, `strikes = "3 of 2"`, "8:12 3 of 2", mistake, "2 of 3"},
	{"cool-down without a unit", `action = "drain"`, "cooldown = 30", "8:1 cooldown", mistake, "30m"},
	{"hours as numbers", `action = "drain"`, `hours = "9-17"`, "8:10 9-17", mistake, "08:00-18:00"},
	{"no runs that pass", `action = "drain"`, "passes = 0", "8:1 passes", mistake, "1 to 500"},
	{"unknown remedy", `action = "drain"`, `remedy = "reboot"`, "7:1 [policy.gpu]", mistake, "reboot-node"},
	{"misspelt code of a policy", "[policy.gpu]", `[policy."gpu.recovery.last"]`, "7:23 last", mistake, "gpu.recovery.lost"},
	{"hosts of a policy", `action = "drain"`, `hosts = "gpu*"`, "8:1 hosts", mistake, "[[check]] with hosts"},
	{"unknown context", `action = "drain"`, `contexts = ["prologue"]`, "8:14 prologue", mistake, "prolog"},
	{"unknown class", "[policy.gpu]", "[policy.gpus]", "7:9 gpus", mistake, "gpu"},
	{"quote not closed in TOML", `mark = "drain"`, `mark = "drain`, "5:1 mark", mistake, "close the quote"},
	{"key twice", "budget = 10", "budget = 10\nbudget = 20", "5:1 budget", mistake, ""},
	{"range in a glob of a table", "{gpu[01-16]}", "gpu[01-16]", "12:13 [01-16]", mistake, "{gpu[01-16]}"},
	{"table twice", "", "[[check]]\nname = \"check_file_test\"\ntest = \"d\"\nfiles = [\"/proc\"]", "28:1 check_file_test", warning, "remove one"},
	{"output without a directory", `"/var/log/nhc-gpu.jsonl"`, `"nhc-gpu.jsonl"`, "21:1 jsonl", mistake, "absolute path"},
	{"textfile of another name", "nhc.prom", "nhc.txt", "22:13 /var/lib/prometheus/node-exporter/nhc.txt", mistake, ".prom"},
	{"unknown key of an output", "jsonl = ", "json = ", "21:1 json", mistake, "jsonl"},
	{"command line as a text", `["/usr/local/sbin/ticket", "--queue=gpu"]`, `"/usr/local/sbin/ticket --queue=gpu"`, "23:12 /usr/local/sbin/ticket --queue=gpu", mistake, "a list: "},
	{"program without a path", `"/usr/local/sbin/ticket"`, `"ticket"`, "23:13 ticket", mistake, "absolute path"},
	{"yes for true", `jsonl = "/var/log/nhc-gpu.jsonl"`, `privacy = "yes"`, "21:12 yes", mistake, "true or false"},
	{"limit above a whole partition", "percent = 20", "percent = 120", "26:1 percent", mistake, "0 to 100"},
	{"limits of 0", "percent = 20", "percent = 0\nnodes = 0", "25:1 [guard]", mistake, "above 0"},
	{"unknown key of the guard", "percent = 20", "percentage = 20", "26:1 percentage", mistake, "percent"},
	{"exempt code as a text", `["gpu.ecc", "check_ps_service"]`, `"gpu.ecc"`, "27:15 ecc", mistake, "a list of texts"},
	{"unknown exempt code", `"gpu.ecc"`, `"gpu.eec"`, "27:16 eec", warning, "a code of"},
	{"unknown word of the guard", "percent = 20", `uncounted = "resume"`, "26:14 resume", mistake, "drain"},
	{"size with a unit", `jsonl = "/var/log/nhc-gpu.jsonl"`, `jsonl_max = "16M"`, "21:14 16M", mistake, "bytes"},
}

// goodRemedies is an nhc.toml with repairs.
const goodRemedies = `[remedy.gpu]
do = "reset-gpu"
platforms = ["HGX H100"]
verify = ["check_gpu_gemm"]

[remedy.sssd]
do = "restart-app"
codes = ["ps.service", "fs.mount", "file.test", "gpu.xid.79"]
services = ["sssd"]
`

var remedyMutations = []mutation{
	{"platform in lower case", `"HGX H100"`, `"hgx-h100"`, "3:15 hgx-h100", warning, "HGX H100"},
	{"unknown platform of a remedy", `"HGX H100"`, `"all of ours"`, "3:15 all of ours", warning, "nhc-gpu platforms"},
	{"unknown code of a remedy", `"ps.service"`, `"ps.servic"`, "8:14 servic", warning, "a code of"},
	{"unknown check after a remedy", `"check_gpu_gemm"`, `"check_gpu_gem"`, "4:12 check_gpu_gem", warning, "check_gpu_gemm"},
}

// goodLimits is an nhc.toml whose checks have limits.
const goodLimits = `[[check]]
name = "fs_used"
fs = "/"
max = "90%"

[[check]]
name = "hw_physmem"
min = "500G"
max = "520G"

[[check]]
name = "check_file_test"
files = ["/proc", "/sys"]
`

var limitMutations = []mutation{
	{"a percentage without its sign in a table", `max = "90%"`, "max = 90 # percent", "4:7 90", warning, `max = "90%"`},
	{"memory without its unit in a table", `min = "500G"`, "min = 500", "8:7 500", warning, `min = "500G"`},
	{"unit of another tool in a table", `"520G"`, `"520GiB"`, "9:8 520GiB", mistake, `max = "520G"`},
	{"swapped values of a table", "fs = \"/\"\nmax = \"90%\"", "fs = \"90%\"\nmax = \"/\"", "3:7 90%", mistake, `fs = "/", max = "90%"`},
	{"limit that a table lacks", `max = "90%"`, "", "2:9 fs_used", warning, "check_fs_used FS MAX"},
	{"mount point of LBNL NHC's genconf in a table", `fs = "/"`, `fs = "/mnt/my040dir"`, "3:7 /mnt/my040dir", warning, `fs = "/mnt/my dir"`},
	{"relative path in a table", `"/sys"`, `"sys"`, "13:20 sys", warning, "check_file_test"},
}

// goodProfiles is a profiles.toml without a mistake.
const goodProfiles = `[[platform]]
name = "x"
devices = ["2330"]
gpus = { value = 8, source = "vendor" }
`

var profileMutations = []mutation{
	{"platform without a name", `name = "x"`, "", "1:1 [[platform]]", mistake, "name"},
	{"unknown figure", "gpus = ", "gpu = ", "4:1 gpu", mistake, "gpus"},
	{"lanes that no link has", "gpus = { value = 8, source = \"vendor\" }", "pcie_width = 20", "4:1 pcie_width", mistake, "16"},
	{"platform that is nearly known", "name = \"x\"\ndevices = [\"2330\"]", "name = \"HGX H1000\"", "2:9 HGX H1000", mistake, "HGX H100"},
	{"misspelt table of platforms", "[[platform]]", "[[platforms]]", "1:3 platforms", mistake, "[[platform]]"},
	{"device id", `"2330"`, `"233"`, "3:13 233", mistake, "4 hexadecimal digits"},
}

// goodXids is a policy for Xids without a mistake.
const goodXids = `[[xid]]
code = 79
class = "WATCH"
why = "seen after resets"
`

var xidMutations = []mutation{
	{"class that is none", `"WATCH"`, `"DRAIN"`, "3:10 DRAIN", mistake, "IGNORE"},
	{"class that is nearly right", `"WATCH"`, `"REBOT"`, "3:10 REBOT", mistake, "REBOOT"},
	{"number that no Xid has", "code = 79", "code = 1079", "2:8 1079", warning, "below 1000"},
	{"misspelt table of Xids", "[[xid]]", "[[xids]]", "1:3 xids", mistake, "xid"},
	{"text for a code", "code = 79", `code = "79"`, "2:1 code", mistake, "a whole number"},
	{"misspelt key of a policy", "why = ", "wy = ", "4:1 wy", mistake, ""},
}

// goodCounters is an ibcounters.toml without a mistake.
const goodCounters = `[[counter]]
name = "symbol_error"
per = "hour"
warn = 120

[[counter]]
name = "net/rx_missed_errors"
warn = 1000
`

var counterMutations = []mutation{
	{"unknown counter", `"net/rx_missed_errors"`, `"rx_missed_errors"`, "7:9 rx_missed_errors", mistake, "net/NAME"},
	{"unknown unit of a counter", `"hour"`, `"day"`, "3:8 day", mistake, "second, minute or hour"},
	{"misspelt key of a counter", "warn = 1000", "warning = 1000", "8:1 warning", mistake, "warn"},
}

// goodClasses is a dcgm.toml without a mistake.
const goodClasses = `[[error]]
name = "PCI_REPLAY_RATE"
class = "fail"

[[error]]
code = 140
name = "SOMETHING_NEW"
class = "info"
`

var classMutations = []mutation{
	{"unknown class of an error", `"fail"`, `"drain"`, "3:10 drain", mistake, "fail, warn or info"},
	{"misspelt error", `"PCI_REPLAY_RATE"`, `"PCI_REPLAYS"`, "2:9 PCI_REPLAYS", mistake, "a name such as"},
	{"misspelt table of errors", "[[error]]", "[[errors]]", "1:3 errors", mistake, "error"},
}

// goodCabling is a list of switch ports without a mistake.
const goodCabling = "0x506b4b0300f4a8d2,1 leaf03 port 12 # gpu01 mlx5_0\n"

var cablingMutations = []mutation{
	{"port without a number", "d2,1 leaf03", "d2 leaf03", "1:1 0x506b4b0300f4a8d2", mistake, "GUID,PORT"},
	{"GUID that is too short", "0x506b4b0300f4a8d2", "0x506b4b03", "1:1 0x506b4b03", mistake, "0x506b4b0300f4a8d2,1"},
	{"port without its far end", " leaf03 port 12", "", "1:1 0x506b4b0300f4a8d2,1", mistake, "the far end"},
}

const goodScript = "check_site() {\n\tif true; then\n\t\tdie 1 bad\n\tfi\n}\n"

var scriptMutations = []mutation{
	{"function that is not closed", "\tfi\n}\n", "\tfi\n", "1:14 {", mistake, "balance"},
	{"if without fi in a script", "\tfi\n", "", "4:1 }", mistake, "fi"},
	{"CR LF in a script", "check_site() {\n", "check_site() {\r\n", "1:0 ", mistake, "dos2unix"},
}

// wrongFiles are whole files that are mistakes.
var wrongFiles = []struct {
	name, file, text string
	grade            grade
	fix              string
}{
	{"empty file", "nhc.conf", "", warning, "nhc-gpu genconf"},
	{"comments alone", "nhc.conf", "# nothing\n", warning, "nhc-gpu genconf"},
	{"UTF-16", "nhc.conf", "\xff\xfe*\x00 \x00|\x00|\x00", mistake, "iconv"},
	{"TOML in a file of lines", "nhc.conf", goodTables, mistake, "nhc.toml"},
	{"wrong extension", "nhc.cfg", goodLines, mistake, "nhc.conf"},
	{"script with another extension", "site.sh", goodScript, mistake, ".nhc"},
	{"line ends of an old Mac", "nhc.conf", "* || true\r* || true\r", mistake, "tr "},
}

// judged returns what lint finds in the text of a file.
func judged(file, text string) *findings {
	l := &linter{o: &Options{}, texts: map[string][]byte{file: []byte(text)}}
	l.judge(&site{}, file, []byte(text))
	l.sort()
	return &l.findings
}

// Every mistake is found, at its place, with what to write, and nothing else is.
func TestMutations(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	kind := func(t *testing.T, name string) {
		t.Helper()
		if kinds[name] {
			t.Fatal("there are two of that name")
		}
		kinds[name] = true
	}
	try := func(file, good string, list []mutation) {
		for _, m := range list {
			t.Run(m.name, func(t *testing.T) {
				kind(t, m.name)
				bad := good + m.bad + "\n"
				if m.old != "" {
					if !strings.Contains(good, m.old) {
						t.Fatalf("%q is not in the good file", m.old)
					}
					bad = strings.Replace(good, m.old, m.bad, 1)
				}
				l := judged(file, bad)
				if len(l.list) == 0 {
					t.Fatal("nothing is found")
				}
				f := &l.list[0]
				if got := fmt.Sprintf("%d:%d %s", f.Line, f.Column, f.Word); got != m.want || f.Severity != m.grade || !strings.Contains(f.Fix, m.fix) {
					t.Errorf("got %q %s, fix %q; want %q %s, fix %q\n%s", got, f.Severity, f.Fix, m.want, m.grade, m.fix, f)
				}
				if f.Now == "" || f.Fix == "" || f.File != file {
					t.Errorf("incomplete: %+v", f)
				}
				for i := range l.list[1:] {
					if other := &l.list[1+i]; other.Severity > remark && other.Line == f.Line {
						t.Errorf("also: %s", other)
					}
				}
			})
		}
	}
	try("nhc.conf", goodLines, lineMutations)
	try("nhc", goodSettings, settingMutations)
	try("nhc.toml", goodTables, tableMutations)
	try("nhc.toml", goodRemedies, remedyMutations)
	try("nhc.toml", goodLimits, limitMutations)
	try("profiles.toml", goodProfiles, profileMutations)
	try("xid.toml", goodXids, xidMutations)
	try("ibcounters.toml", goodCounters, counterMutations)
	try("dcgm.toml", goodClasses, classMutations)
	try("cabling", goodCabling, cablingMutations)
	try("site.nhc", goodScript, scriptMutations)
	for _, w := range wrongFiles {
		t.Run(w.name, func(t *testing.T) {
			kind(t, w.name)
			l := judged(w.file, w.text)
			if len(l.list) != 1 {
				t.Fatalf("%d findings, want one: %v", len(l.list), l.list)
			}
			if f := &l.list[0]; f.Severity != w.grade || f.Now == "" || !strings.Contains(f.Fix, w.fix) {
				t.Errorf("%s, want %s, fix %q", f, w.grade, w.fix)
			}
		})
	}
	const least = 60
	t.Logf("%d kinds of mistakes", len(kinds))
	if len(kinds) < least {
		t.Errorf("%d kinds of mistakes, want %d", len(kinds), least)
	}
}

// A line or a setting that lint says to write has no mistake of its own.
func TestFixes(t *testing.T) {
	t.Parallel()
	setting := regexp.MustCompile(`^(?:write )?([A-Z_]+=\S+)(?: in /etc/sysconfig/nhc.*)?$`)
	tried := 0
	for _, m := range slices.Concat(lineMutations, settingMutations) {
		file, good := "nhc.conf", goodLines
		if !slices.ContainsFunc(lineMutations, func(l mutation) bool { return l.name == m.name }) {
			file, good = "nhc", goodSettings
		}
		bad := good + m.bad + "\n"
		if m.old != "" {
			bad = strings.Replace(good, m.old, m.bad, 1)
		}
		for _, f := range judged(file, bad).list {
			text := ""
			name, _, _ := strings.Cut(f.Fix, " ")
			info, isCheck := checks.Lookup(name)
			if m := setting.FindStringSubmatch(f.Fix); m != nil {
				file, text = "nhc", m[1]
			} else if isCheck && f.Fix != name && !strings.HasPrefix(f.Fix, usageOf(info)) {
				file, text = "nhc.conf", "* || "+f.Fix
			}
			if text == "" {
				continue
			}
			tried++
			for _, again := range judged(file, text+"\n").list {
				if again.Severity > remark {
					t.Errorf("%s: fix %q of %s has a mistake: %s", m.name, f.Fix, &f, &again)
				}
			}
		}
	}
	if tried < 40 {
		t.Errorf("%d lines and settings, want more", tried)
	}
}

// A directory is judged with every file that a variable of a check names by default.
func TestConfigNames(t *testing.T) {
	t.Parallel()
	for variable, path := range checks.Variables() {
		if name, ok := strings.CutPrefix(path, "/etc/nhc/"); ok && !slices.Contains(configNames, name) {
			t.Errorf("%s: lint does not read %s of a directory", variable, name)
		}
	}
}

// A check that compares a wrong word, or passes it on, fails: it is not called unevaluated.
func TestWhatFails(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"check_file_stat -m 0788 /etc/passwd", "check_file_stat -M 99 /etc/passwd", "check_file_stat -u root /etc/passwd", "check_file_stat -g root /etc/passwd", "check_net_ping -c x host", "check_net_ping -W x host"} {
		if list := judged("nhc.conf", "* || "+line+"\n").list; len(list) != 1 || list[0].Now != failsEverywhere {
			t.Errorf("%s: %v", line, list)
		}
	}
}

// The effect of a limit that no device has, or that is no percentage from 1% to 100%, depends on its side.
func TestLimitsOutOfReach(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"check_gpu_temp 850": neverFails, "check_gpu_temp 20": failsEverywhere,
		"check_gpu_pcie 5 160": failsEverywhere, "check_gpu_bandwidth 0.1": neverFails, "check_gpu_count 80": failsEverywhere,
		"check_fs_used / 0%": failsEverywhere, "check_fs_used / 110%": neverFails,
		"check_fs_free / 0%": neverFails, "check_fs_free / 110%": failsEverywhere,
		"check_all_fs_ifree xfs 110%": failsEverywhere, "check_all_fs_iused xfs 110%": neverFails,
		"check_fs_used / 9O%": unevaluated,
	} {
		if list := judged("nhc.conf", "* || "+line+"\n").list; len(list) != 1 || list[0].Now != want {
			t.Errorf("%s: %v, want %q", line, list, want)
		}
	}
}

// Good configurations are silent: the examples, the lines of the page about active tests, and every
// recorded case of LBNL NHC that passes, but those whose subject is a mistake.
func TestGoodConfigurations(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"nhc.conf": goodLines, "nhc": goodSettings, "shell.sysconfig": goodShell, "nhc.toml": goodTables, "profiles.toml": goodProfiles, "xid.toml": goodXids, "site.nhc": goodScript,
		"sites.conf": goodOfSites, "limits.toml": goodLimits, "remedies.toml": goodRemedies, "ibcounters.toml": goodCounters, "dcgm.toml": goodClasses, "classes.toml": goodClasses, "cabling": goodCabling, "active.conf": linesOf(t, "../../../../docs/active.md"),
	}
	files, err := filepath.Glob("../../../../conf/examples/*.conf")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		good[file] = string(data)
	}
	recorded := 0
	cases, err := filepath.Glob("../../../../tests/lbnl/testdata/cases/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range cases {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var c struct {
				ID, Conf string
				Expect   struct{ Exit int }
			}
			if err := json.Unmarshal([]byte(line), &c); err != nil {
				t.Fatal(err)
			}
			if c.Expect.Exit == 0 && c.Conf != "" && !ofMistakes.MatchString(c.ID) {
				good[c.ID+".conf"] = strings.ReplaceAll(c.Conf, "{DIR}", "/d")
				recorded++
			}
		}
	}
	if recorded < 150 {
		t.Errorf("only %d recorded cases", recorded)
	}
	for file, text := range good {
		for _, f := range judged(file, text).list {
			if f.Severity > remark || strings.HasPrefix(f.Now, "the check runs twice") {
				t.Errorf("%s\n%.300s", &f, text)
			}
		}
	}
}

// linesOf returns the lines of nhc.conf in a page, each once.
func linesOf(t *testing.T, page string) string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "    ") && strings.Contains(line, " || check_") && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) < 12 {
		t.Fatalf("%s: %d lines", page, len(lines))
	}
	return strings.Join(lines, "")
}

// ofMistakes are the recorded cases about a mistake that LBNL NHC is silent about.
var ofMistakes = regexp.MustCompile(`^(core-cli-a-256|core-conf-(missing-sep-nomatch|continuation-comment|only-comments|exit0|syntax-check-all|target-only-hash)` +
	`|core-match-(glob-vars|regex-odd|regex-backslash|regex-invalid|regex-pipes|range-malformed-silent|range-numeric-host|range-ws|host-empty|ext-basic|ext-cmdline)` +
	`|check-diff-(c3-malformed-percent|c11-256|c11-300-die)|check_cmd_status-07|check_file_contents-1[45]|check_file_test-(18|20)|check_fs_mount-30|check_fs_free-0[45]|check_fs_ifree-0[13]|check_fs_iused-01|check-diff-c3-size|check_fs_size-0[78]` +
	`|check_hw_(mem|physmem|swap)-0[15]|check_hw_(physmem|swap)_free-03|check_ps_blacklist-03|check_file_stat-30)$`)

// goodOfSites has forms of lines that sites have written.
const goodOfSites = ` * || export NHC_RM=slurm
 * || HOSTNAME="$HOSTNAME_S"
# * || export TIMEOUT=15
 * || check_fs_mount_rw /
 * || check_hw_physmem 1k 1TB
 * || check_hw_swap 0kB 0kB 3%
 * || check_dmi_data_match "BIOS Information: Version: 2.0.1"
 * || check_fs_mount_rw -s 'server:/my\040share' -f /scratch040 -f /vol_040_a
 * || check_fs_mount_rw -t devpts -s '/(none|devpts)/' -f /dev/pts
 * || check_fs_mount_rw -t "nfs" -s "server:/ifs/projects" -F "/projects"
/^s(has|sky|gpu)/ || check_ps_service -d mmfsd gpfs-site.mount
/^s(has|sky|gpu)/ || check_ps_service -E '/usr/lpp/mmfs/bin/mmsysmoncontrol stop' -f -d 'mmsysmon.py' mmsysmon
 * || check_fs_ifree /tmp 1k
 * || check_file_test -r -w -x -d -k /tmp /var/tmp
 * || check_file_test -c /dev/null
 * || check_file_contents /etc/passwd "/^root:x:0:0:/" "sshd:*"
 * || check_ps_unauth_users log syslog kill
 * || check_ps_unauth_users -u 5001,5002 -u "5003 5004" -n alice,bob -n 'AD\\carol' -p 1,2 log kill
 * || check_ps_userproc_lineage -u 5001,5002 -u "5003 5004" -p 1,2 log kill
 * || check_ps_loadavg $((2*HW_CORES))
 * || check_moab_sched -t 10 -v 7.2.3 -m '!/PAUSED/'
 * || check_cmd_output -t 2 -m 'NTP synchronized: yes' -e 'timedatectl'
 * || check_cmd_output -m '/addr:10\\.0\\.0\\.1/' -m '/^[[:space:]]*UP /' /sbin/ifconfig eth3
 * || check_nccl_allreduce 99.0 1 4G $AZ_NHC_ROOT/topofiles/x.xml
 gpu-[1-8] || check_gpu_xid /var/log/syslog
 * || >/dev/null
 * || [ -e /etc/maintenance ] || check_hw_ib 400
 * || if [ -d /proc/driver/nvidia ]; then check_gpu_count 8; fi
`

// The page has every mistake, as lint reports it. NHC_GPU_WRITE=docs writes them.
func TestDocs(t *testing.T) {
	t.Parallel()
	const page, head = "../../../../docs/lint.md", "The examples are parts of a good configuration with one mistake each.\n"
	var b strings.Builder
	cell := strings.NewReplacer("|", `\|`, "\n", " ⏎ ", "\t", " ", "\u00a0", "⍽", "\u200b", "U+200B", "\ufeff", "U+FEFF", "\r", "␍").Replace
	code := func(text string) string {
		if strings.Contains(text, "`") {
			return cell(text)
		}
		return "`" + cell(text) + "`"
	}
	rows := func(title, file, good string, list []mutation) {
		fmt.Fprintf(&b, "\n### %s\n\n| mistake | example | lint | write |\n|---|---|---|---|\n", title)
		for _, m := range list {
			bad, example := good+m.bad+"\n", code(m.bad)
			if m.old != "" {
				bad = strings.Replace(good, m.old, m.bad, 1)
			}
			if m.bad == "" {
				example = "(without) " + code(m.old)
			}
			f := &judged(file, bad).list[0]
			fmt.Fprintf(&b, "| %s | %s | %s: %s | %s |\n", cell(m.name), example, f.Severity, cell(f.message()), code(f.Fix))
		}
	}
	rows("nhc.conf", "nhc.conf", goodLines, lineMutations)
	rows("/etc/sysconfig/nhc", "nhc", goodSettings, settingMutations)
	rows("nhc.toml", "nhc.toml", goodTables, tableMutations)
	rows("Remedies in nhc.toml", "nhc.toml", goodRemedies, remedyMutations)
	rows("Limits in nhc.toml", "nhc.toml", goodLimits, limitMutations)
	rows("profiles.toml", "profiles.toml", goodProfiles, profileMutations)
	rows("The policy for Xids", "xid.toml", goodXids, xidMutations)
	rows("Limits of port counters", "ibcounters.toml", goodCounters, counterMutations)
	rows("Classes of DCGM's errors", "dcgm.toml", goodClasses, classMutations)
	rows("The list of switch ports", "cabling", goodCabling, cablingMutations)
	rows("Scripts", "site.nhc", goodScript, scriptMutations)
	b.WriteString("\n### Whole files\n\n| mistake | lint | write |\n|---|---|---|\n")
	for _, w := range wrongFiles {
		f := &judged(w.file, w.text).list[0]
		fmt.Fprintf(&b, "| %s | %s: %s | %s |\n", w.name, f.Severity, cell(f.message()), code(f.Fix))
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, got, ok := strings.Cut(string(data), head)
	if !ok {
		t.Fatalf("%s: no %q", page, head)
	}
	if os.Getenv("NHC_GPU_WRITE") == "docs" {
		if err := os.WriteFile(page, []byte(before+head+b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(b.String(), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", page, diff)
	}
}

// The grammar of bash gives no column and no line to places far behind in a line or a file.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	far, down := strings.Repeat("x", 1<<14), strings.Repeat("\n", 1<<18)
	for name, tt := range map[string]struct{ file, text, want string }{
		"a long line":                     {"nhc", "#\nµ=" + far + "; TIMEOUT=30s\n", "2:16389 TIMEOUT=30s"},
		"a long line that does not end":   {"nhc", "#\nx=" + far + " \"y\n", "2:16388 \"y"},
		"a script with a long line":       {"site.nhc", "#\nx=" + far + " \"y\n", "2:16388 \"y"},
		"a long file":                     {"nhc", down + "TIMEOUT=30s\n", "262145:1 TIMEOUT=30s"},
		"a long script that does not end": {"site.nhc", down + "x=\"y\n", "262145:3 \"y"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := judged(tt.file, tt.text)
			if len(l.list) != 1 {
				t.Fatalf("%d findings, want one", len(l.list))
			}
			if got := fmt.Sprintf("%d:%d %s", l.list[0].Line, l.list[0].Column, l.list[0].Word); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// No text makes lint panic: files with random bytes removed, doubled or replaced.
func TestRandomTexts(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	good := map[string]string{"nhc.conf": goodLines + goodOfSites, "nhc": goodSettings, "nhc.toml": goodTables, "profiles.toml": goodProfiles, "xid.toml": goodXids, "site.nhc": goodScript, "dcgm.toml": goodClasses, "cabling": goodCabling}
	const letters = "|&!{}[]()/\\\"'$#*=-,;: \t\n\r\u00a0\u2028\u201c\xff\x00a0%<>~`^?+"
	pieces := []rune(letters)
	for file, text := range good {
		for range 300 {
			bad := []rune(text)
			for range 1 + random.IntN(4) {
				at := random.IntN(len(bad))
				switch n := random.IntN(1 + min(12, len(bad)-at)); random.IntN(4) {
				case 0:
					bad = slices.Delete(bad, at, at+n)
				case 1:
					bad = slices.Insert(bad, at, slices.Clone(bad[at:at+n])...)
				case 2:
					bad[at] = pieces[random.IntN(len(pieces))]
				default:
					bad = slices.Insert(bad, at, pieces[random.IntN(len(pieces))])
				}
				if len(bad) == 0 {
					break
				}
			}
			l := judged(file, string(bad))
			lines := strings.Count(string(bad), "\n") + 1
			for _, f := range l.list {
				if f.Line > lines || f.Line < 0 || f.Column < 0 {
					t.Fatalf("%s in %q", &f, string(bad))
				}
			}
		}
	}
}
