package xid

import (
	"github.com/nhc-gpu/nhc-gpu/checks"

	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

//go:embed nvlink5.toml
var nvlink5TOML string

// nvlink5Row is one row of nvlink5.toml.
type nvlink5Row struct {
	Xid         int    `toml:"xid"`
	Unit        string `toml:"unit"`
	V1          string `toml:"v1"`
	V2          string `toml:"v2"`
	Status      uint32 `toml:"status"`
	Resolution  string `toml:"resolution"`
	Flag1       string `toml:"flag1"` // patterns under which Action2 replaces Resolution
	Flag2       string `toml:"flag2"`
	Action2     string `toml:"action2"`
	Severity    string `toml:"severity"`
	Investigate string `toml:"investigate"`
}

var nvlink5Table = sync.OnceValue(func() []nvlink5Row {
	var file struct {
		Source string       `toml:"source"`
		Decode []nvlink5Row `toml:"decode"`
	}
	if _, err := toml.Decode(nvlink5TOML, &file); err != nil {
		panic(fmt.Sprintf("checks: nvlink5.toml: %v", err))
	}
	return file.Decode
})

// nvlink5 is the parsed text of an Xid 144 to 150:
//
//	RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000 ...)
type nvlink5 struct {
	Unit   string
	Word   string // Fatal, Nonfatal, Link Fatal
	Link   string
	Intr   uint32 // intrInfo
	Status uint32 // errorStatus
}

// parseNVLink5 parses the text after the code of such an Xid. The text before its last comma can be the
// rest of a process name.
func parseNVLink5(text string) (n nvlink5, ok bool) {
	at := strings.LastIndex(text, "(0x")
	if at < 0 {
		return n, false
	}
	head, numbers := text[:at], text[at+1:]
	if i := strings.LastIndex(head, ", "); i >= 0 {
		head = head[i+2:]
	}
	words := strings.Fields(head)
	if len(words) < 2 {
		return n, false
	}
	if words[0] == "MSE" && words[1] == "Degraded" && len(words) > 2 { // the only unit with two words
		words = append([]string{"MSE Degraded"}, words[2:]...)
	}
	n.Unit, n.Word = words[0], words[1]
	if n.Word == "Link" && len(words) > 2 && strings.HasPrefix(words[2], "Fatal") {
		n.Word = "Link Fatal"
	}
	n.Link = parseLink(strings.Join(words[2:], " "))
	numbers, _, _ = strings.Cut(numbers, ")")
	values := strings.Fields(strings.ReplaceAll(numbers, ",", " "))
	if len(values) < 2 {
		return n, false
	}
	intr, err1 := strconv.ParseUint(values[0], 0, 32)
	status, err2 := strconv.ParseUint(values[1], 0, 32)
	n.Intr, n.Status = uint32(intr), uint32(status)
	return n, err1 == nil && err2 == nil
}

// firstV2 is the first driver branch with the second layout of intrInfo.
const firstV2 = 575

// decodeNVLink5 finds the row of a line, with Action2 as its resolution if the line has that flag. The
// driver's version determines the layout; if it is unknown either layout is accepted.
func decodeNVLink5(code int, n nvlink5, driver string) (nvlink5Row, bool) {
	branch := parseBranch(driver)
	for _, r := range nvlink5Table() {
		if r.Xid != code || r.Status != n.Status || !r.isUnit(n.Unit) {
			continue
		}
		if n.fits(r.V1, r.V2, branch) {
			return r, true
		}
		if r.Action2 != "" && n.fits(r.Flag1, r.Flag2, branch) {
			r.Resolution, r.Severity = r.Action2, "promoted to fatal"
			return r, true
		}
	}
	return nvlink5Row{}, false
}

// fits compares intrInfo with the patterns of the layout that a driver has.
func (n nvlink5) fits(v1, v2 string, branch int) bool {
	return fits(v1, n.Intr) && (branch == 0 || branch < firstV2) || fits(v2, n.Intr) && (branch == 0 || branch >= firstV2)
}

// isUnit reports whether the row is about the unit: "TLW_RX/TLW_RX_PIPE0" has two names.
func (r nvlink5Row) isUnit(unit string) bool {
	if unit == r.Unit {
		return true
	}
	for name := range strings.SplitSeq(r.Unit, "/") {
		if name == unit {
			return true
		}
	}
	return false
}

// describeUnits counts the rows of an Xid by unit and resolution: "RLW_CTRL: IGNORE 1".
func describeUnits(code int) (units []string) {
	counts, order := map[string]map[string]int{}, []string{}
	for _, r := range nvlink5Table() {
		if r.Xid != code {
			continue
		}
		if counts[r.Unit] == nil {
			counts[r.Unit], order = map[string]int{}, append(order, r.Unit)
		}
		counts[r.Unit][r.Resolution]++
		if r.Action2 != "" {
			counts[r.Unit][r.Action2+" if promoted (action 2)"]++
		}
	}
	for _, unit := range order {
		var parts []string
		for _, resolution := range slices.Sorted(maps.Keys(counts[unit])) {
			parts = append(parts, fmt.Sprintf("%s %d", resolution, counts[unit][resolution]))
		}
		units = append(units, unit+": "+strings.Join(parts, ", "))
	}
	return units
}

// fits compares a number with a pattern of 32 digits and dashes.
func fits(pattern string, n uint32) bool {
	for i := range len(pattern) {
		bit := byte('0' + n>>(len(pattern)-1-i)&1)
		if pattern[i] != '-' && pattern[i] != bit {
			return false
		}
	}
	return true
}

// parseBranch returns the number before the first dot of a driver's version, 0 if unknown.
func parseBranch(version string) int {
	branch, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(branch)
	if err != nil {
		return 0
	}
	return n
}

// class returns the class of an event of this row.
func (r nvlink5Row) class() checks.XidClass {
	switch r.Resolution {
	case "RESET_GPU":
		return checks.XidReset
	case "XID_154_EVAL":
		return checks.XidFollow
	}
	if strings.HasPrefix(r.Investigate, "INVESTIGATE_") { // a cable, a host
		return checks.XidWatch
	}
	return checks.XidIgnore
}

// decodeXid returns the class of an event of class DECODE, and its details. An event without a row has
// class WATCH: the driver logs Xid 154 if more is needed.
func decodeXid(code int, text, driver string) (class checks.XidClass, what string) {
	n, ok := parseNVLink5(text)
	if !ok {
		return checks.XidWatch, "cannot be decoded"
	}
	what = n.Unit
	if n.Link != "" {
		what += " on link " + n.Link
	}
	r, ok := decodeNVLink5(code, n, driver)
	if !ok {
		return checks.XidWatch, fmt.Sprintf("%s, %s, not in NVIDIA's table", what, n.Word)
	}
	what += ", " + r.Severity
	if strings.HasPrefix(r.Investigate, "INVESTIGATE_") {
		what += ", " + r.Investigate
	}
	return r.class(), what
}
