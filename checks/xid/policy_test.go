package xid

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// xidTable and sxidTable parse the whole tables as TOML.
var (
	xidTable  = sync.OnceValue(func() map[int]xidRow { return wholeXidTable(xidTOML) })
	sxidTable = sync.OnceValue(func() map[int]xidRow { return wholeXidTable(sxidTOML) })
)

func wholeXidTable(text string) map[int]xidRow {
	var file struct {
		Version string   `toml:"version"`
		Xid     []xidRow `toml:"xid"`
		SXid    []xidRow `toml:"sxid"`
	}
	md, err := toml.Decode(text, &file)
	if err != nil || len(md.Undecoded()) > 0 || file.Version == "" {
		panic(fmt.Sprintf("version %q, surplus %v, %v", file.Version, md.Undecoded(), err))
	}
	table := map[int]xidRow{}
	for _, r := range append(file.Xid, file.SXid...) {
		if _, twice := table[r.Code]; twice {
			panic(fmt.Sprintf("code %d twice", r.Code))
		}
		if r.Remedy == "none" {
			r.Remedy = checks.NoRemedy
		}
		table[r.Code] = r
	}
	return table
}

// A row that is parsed alone equals the row of the table.
func TestXidRowOf(t *testing.T) {
	t.Parallel()
	for isSwitch, table := range map[bool]map[int]xidRow{false: xidTable(), true: sxidTable()} {
		for code, want := range table {
			got, ok := readRow(checks.XidKey{Switch: isSwitch, Code: code})
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(xidRow{})); diff != "" || !ok {
				t.Errorf("%v %d: %v (-want +got):\n%s", isSwitch, code, ok, diff)
			}
		}
	}
}

// TestXidTables refuses an incomplete row, and a table without
// a code of NVIDIA's catalogue.
func TestXidTables(t *testing.T) {
	t.Parallel()
	for code := range 178 {
		if _, ok := xidTable()[code]; !ok {
			t.Errorf("xid.toml has no row for %d", code)
		}
	}
	for first, last := range map[int]int{
		10001: 10008, 11001: 11047, 12001: 12051, 13001: 13008, 14001: 14018, 15001: 15020, 16001: 16003, 17001: 17008, 18001: 18020,
		19001: 19084, 20001: 20038, 21001: 21010, 22001: 22013, 23001: 23017, 24001: 24010, 25001: 25010, 26001: 26008, 27001: 27007,
		28001: 28006, 29001: 29006, 30001: 30006,
	} {
		for code := first; code <= last; code++ {
			if _, ok := sxidTable()[code]; !ok {
				t.Errorf("sxid.toml has no row for %d", code)
			}
		}
	}
	for code, r := range xidTable() {
		checkXidRow(t, fmt.Sprintf("xid %d", code), r)
	}
	for code, r := range sxidTable() {
		checkXidRow(t, fmt.Sprintf("sxid %d", code), r)
		if r.Class == checks.XidState || r.Class == checks.XidDecode || r.Class == checks.XidAuthority || r.Repeat != nil || r.State != "" {
			t.Errorf("sxid %d: %+v has what only an Xid may have", code, r)
		}
	}
}

func checkXidRow(t *testing.T, name string, r xidRow) {
	t.Helper()
	if r.Name == "" || r.Says == "" || r.Means == "" || r.Source == "" {
		t.Errorf("%s: %+v: want a name, what NVIDIA says, what it means, a source", name, r)
	}
	classes := append([]checks.XidClass{r.Class}, r.Again...)
	if r.Nonfatal != "" {
		classes = append(classes, r.Nonfatal)
	}
	if r.Repeat != nil {
		classes = append(classes, r.Repeat.Class)
		if r.Repeat.Events < 2 || r.Repeat.Hours < 1 || r.Repeat.Same != "" && r.Repeat.Same != "place" {
			t.Errorf("%s: repeat %+v", name, *r.Repeat)
		}
	}
	for _, c := range classes {
		if c.Rank() < 0 {
			t.Errorf("%s: class %q, want one of %v", name, c, checks.XidClasses)
		}
	}
	switch r.Remedy {
	case checks.NoRemedy, checks.RestartApp, checks.ResetGPU, checks.RebootNode, checks.PowerCycle, checks.ReseatOrRMA, checks.CheckCable, checks.CheckFabric, checks.FixConfig:
	default:
		t.Errorf("%s: remedy %q", name, r.Remedy)
	}
	if r.Class.Drains() && r.Remedy == checks.NoRemedy {
		t.Errorf("%s: it drains, and nothing cures it", name)
	}
	switch r.State {
	case "", "remap", "bank", "sram", "links", "mig":
	default:
		t.Errorf("%s: state %q", name, r.State)
	}
	if r.Remedy == checks.PowerCycle && (r.Cure == "" || r.Class != checks.XidReset && r.Class != checks.XidReboot) {
		t.Errorf("%s: class %s with remedy %s, and cure %q", name, r.Class, r.Remedy, r.Cure)
	}
	if r.Class == checks.XidState && r.State == "" {
		t.Errorf("%s: STATE without a state", name)
	}
}

// ofAction returns the class that follows from NVIDIA's immediate action.
var ofAction = map[string]checks.XidClass{
	"IGNORE": checks.XidIgnore, "RESTART_APP": checks.XidApp, "RESET_GPU": checks.XidReset, "WORKFLOW_XID_48": checks.XidReset, "WORKFLOW_NVLINK_ERR": checks.XidReset,
	"RESTART_BM": checks.XidReboot, "RESTART_VM": checks.XidReboot, "UPDATE_SWFW": checks.XidConfig, "CHECK_MECHANICALS": checks.XidHold, "WORKFLOW_XID_45": checks.XidFollow,
	"XID_154": checks.XidAuthority, "WORKFLOW_NVLINK5_ERR": checks.XidDecode, "CONTACT_SUPPORT": checks.XidWatch, "none given": checks.XidWatch,

	"WORKFLOW_NVLINK_POTENTIALLY_FATAL_ERR": checks.XidReset, "INVESTIGATE_LINK_SI": checks.XidReset, "RESET_FABRIC": checks.XidReboot, "RUN_FIELDDIAG": checks.XidDiag,
	"CHECK_FM_CONFIG": checks.XidConfig, "CHECK_LINK_MECHANICAL_CONNECTIONS": checks.XidWatch, "CHECK_THERMALS": checks.XidWatch, "UNEXPECTED_ERR_REPORT_ISSUE": checks.XidWatch,
}

// TestXidWhys refuses a row that differs from NVIDIA's catalogue without a reason.
func TestXidWhys(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]map[int]xidRow{"xid": xidTable(), "sxid": sxidTable()} {
		for code, r := range table {
			action := strings.TrimSpace(r.Says[:strings.IndexAny(r.Says+"/", "/,;")])
			differs := ofAction[action] != r.Class || r.State != "" || r.Repeat != nil || len(r.Again) > 0 || r.Victim
			if differs && r.Why == "" {
				t.Errorf("%s %d: NVIDIA says %q, the class is %s: why?", name, code, r.Says, r.Class)
			}
		}
	}
}

// Rows that other tools raised false alarms for, or missed.
func TestXidClasses(t *testing.T) {
	t.Parallel()
	for class, codes := range map[checks.XidClass][]int{
		checks.XidIgnore:    {37, 38, 44, 66, 67, 106, 108, 141, 152, 153, 162},
		checks.XidFollow:    {43, 45, 171, 172},
		checks.XidApp:       {8, 13, 31, 32, 39, 68, 69, 80, 94, 137, 174},
		checks.XidConfig:    {78},
		checks.XidWatch:     {0, 1, 36, 56, 65, 92, 93, 109, 121, 125, 157, 159, 165, 170, 176, 185},
		checks.XidState:     {63, 177},
		checks.XidReset:     {46, 48, 61, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158, 166, 169, 175},
		checks.XidReboot:    {79, 151, 167, 168, 173},
		checks.XidHold:      {54, 57, 58, 90},
		checks.XidDecode:    {144, 145, 146, 147, 148, 149, 150},
		checks.XidAuthority: {154},
	} {
		for _, code := range codes {
			if got := xidTable()[code].Class; got != class {
				t.Errorf("Xid %d: class %s, want %s", code, got, class)
			}
		}
	}
	for class, codes := range map[checks.XidClass][]int{
		checks.XidWatch:  {10001, 10004, 11012, 12021, 15008, 19049, 20001, 20009, 20012, 24003},
		checks.XidReset:  {11001, 11009, 11013, 12001, 12022, 15006, 19047, 19070, 20034, 22012, 23009, 24004, 24007},
		checks.XidReboot: {10003, 12020, 12028, 12032, 14017, 19084, 22003, 22011, 23001},
		checks.XidConfig: {11004},
		checks.XidIgnore: {22013, 28002},
	} {
		for _, code := range codes {
			if got := sxidTable()[code].Class; got != class {
				t.Errorf("SXid %d: class %s, want %s", code, got, class)
			}
		}
	}
}

func TestXidUnknown(t *testing.T) {
	t.Parallel()
	var p xidPolicy
	for _, k := range []checks.XidKey{{Code: 999}, {Code: -1}, {Switch: true, Code: 79}, {Code: 12028}} {
		if r := p.row(k); r.Class != checks.XidWatch || !r.unknown || r.Code != k.Code {
			t.Errorf("%s: %+v, want an unknown one to watch", k, r)
		}
	}
}

func TestXidPolicyFile(t *testing.T) {
	t.Parallel()
	p, err := parseXidPolicy("/x.toml", `
[[xid]]
code = 79
class = "WATCH"
why = "risers of rack 7, ticket 4711"
[[xid]]
code = 999
class = "RESET"
[[sxid]]
code = 12028
class = "IGNORE"
[class.DIAG]
severity = "fail"
[class.APP]
severity = "ok"
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key  checks.XidKey
		want string
	}{
		{checks.XidKey{Code: 79}, "WATCH  /x.toml: class WATCH instead of REBOOT, risers of rack 7, ticket 4711"},
		{checks.XidKey{Code: 999}, "RESET reset-gpu /x.toml: class RESET instead of WATCH"},
		{checks.XidKey{Switch: true, Code: 12028}, "IGNORE reboot-node /x.toml: class IGNORE instead of REBOOT"},
		{checks.XidKey{Code: 48}, "RESET reset-gpu "},
	} {
		r := p.row(c.key)
		if c.key.Code == 79 {
			r.Remedy = "" // of the row it had
		}
		if got := fmt.Sprintf("%s %s %s", r.Class, r.Remedy, r.override); got != c.want {
			t.Errorf("%s: %q, want %q", c.key, got, c.want)
		}
	}
	want := map[checks.XidClass]checks.Severity{checks.XidDiag: checks.Fail, checks.XidApp: checks.OK, checks.XidWatch: checks.Warn, checks.XidReset: checks.Fail, checks.XidReboot: checks.Fail, checks.XidHold: checks.Fail, checks.XidIgnore: checks.OK}
	got := map[checks.XidClass]checks.Severity{}
	for c := range want {
		got[c] = p.severityOf(c)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestXidPolicyFileIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[[xid]]\ncode = 79\nclass = \"DRAIN\"":                                  `Xid 79: class "DRAIN", want one of`,
		"[[xid]]\ncode = 79":                                                     `Xid 79: class "", want one of`,
		"[[sxid]]\ncode = 1\nclass = \"DECODE\"":                                 `SXid 1: class "DECODE"`,
		"[[xid]]\ncode = 1\nclass = \"APP\"\n[[xid]]\ncode = 1\nclass = \"APP\"": "Xid 1 is given twice, want it once",
		"[[xid]]\ncode = 1\nklass = \"APP\"":                                     "unknown key xid.klass",
		"[class.WATCH]\nseverity = \"loud\"":                                     `class.WATCH: severity "loud"`,
		"[class.GONE]\nseverity = \"ok\"":                                        "class.GONE",
		"[class.DECODE]\nseverity = \"fail\"":                                    "class.DECODE",
		"[class.WATCH]":                                                          `severity ""`,
		"xid = 5":                                                                "/x.toml:1: xid: want a list, got a whole number",
		"[[xid]]\ncode = \"79\"":                                                 "/x.toml:2: xid.code: want a whole number, got text in quotes",
		"[class]\nWATCH = \"fail\"":                                              "/x.toml:2: class.WATCH: want a table, got text in quotes",
		"\x00":                                                                   "/x.toml",
		"[[xid]]\ncode = 79\nclass = 7":                                          "/x.toml:3: xid.class: want text in quotes, got a whole number",
		"[[xid\ncode = 79":                                                       "/x.toml:2: got the end of the line in a header, want [NAME] or [[NAME]]",
	} {
		if p, err := parseXidPolicy("/x.toml", text); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "/x.toml:") {
			t.Errorf("%q: %v, %v, want %q", text, p, err, want)
		}
	}
}

// An unknown code does not drain the node, even if the site has changed WATCH;
// a code with an override is known.
func TestXidUnknownNeverDrains(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.write("etc/nhc/xid.toml", "[class.WATCH]\nseverity = \"fail\"\n[[xid]]\ncode = 998\nclass = \"WATCH\"\n")
	m.xid(92, "x")
	m.xid(998, "x")
	m.xid(999, "x")
	m.look("warn xid.999", "fail xid.92", "fail xid.998")
	m.look("warn xid.999", "fail xid.92", "fail xid.998")
}

// PolicyErrors returns all errors, each with its line.
func TestXidPolicyErrors(t *testing.T) {
	t.Parallel()
	err := PolicyErrors("/x.toml", []byte(`[[xid]]
code = 79
class = "DRAIN"

[[sxid]]
code = 12028
klass = "IGNORE"
class = "IGNORE"

  [[ xid ]]
code = 48
class = "APP"
[[xid]]
code = 48
class = "APP"
[class.GONE]
severity = "ok"
[class.WATCH]
severity = "loud"
[[nvlink]]
`))
	want := []string{
		"/x.toml:7: unknown key sxid.klass, want class", "/x.toml:20: unknown key nvlink, want class, sxid, xid", "/x.toml:1: Xid 79: class \"DRAIN\", want one of",
		"/x.toml:13: Xid 48 is given twice, want it once", "/x.toml:16: class.GONE: unknown class, want one of IGNORE, FOLLOW", "/x.toml:18: class.WATCH: severity \"loud\"",
	}
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	lines := strings.Split(err.Error(), "\n")
	for i := range max(len(lines), len(want)) {
		if i >= len(lines) || i >= len(want) || !strings.HasPrefix(lines[i], want[i]) {
			t.Fatalf("got %q, want %q", lines, want)
		}
	}
	if err := PolicyErrors("/x.toml", []byte("[class.APP]\nseverity = \"ok\"\n")); err != nil {
		t.Error(err)
	}
}

func FuzzXidPolicy(f *testing.F) {
	f.Add("[[xid]]\ncode = 79\nclass = \"WATCH\"\n[class.APP]\nseverity = \"fail\"")
	f.Add("[[sxid]]\ncode = 1\nclass = \"RMA-HOLD\"")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseXidPolicy("x", text)
		if err != nil {
			return
		}
		for k, o := range p.rows {
			if r := p.row(k); r.Class != o.Class || r.override == "" {
				t.Errorf("%s: %+v", k, r)
			}
		}
	})
}

// Only a node with an event parses its row.
func BenchmarkXidRow(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := readRow(checks.XidKey{Code: 172}); !ok {
			b.Fatal("no row")
		}
	}
}
