package checks

import (
	_ "embed"
	"fmt"
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

// nvlink5 is the text of an Xid 144 to 150:
//
//	RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000 ...)
type nvlink5 struct {
	Unit   string
	Word   string // Fatal, Nonfatal, Link Fatal
	Link   string
	Intr   uint32 // intrInfo
	Status uint32 // errorStatus
}

// parseNVLink5 reads the text behind the code of such an Xid. The text before its last
// comma may be the rest of a process name.
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

// firstV2 is the driver branch from which on intrInfo has its second layout.
const firstV2 = 575

// decodeNVLink5 finds the row for what a line says. The layout follows from the
// driver's version; where that is not known the name of the unit has to agree.
func decodeNVLink5(code int, n nvlink5, driver string) (nvlink5Row, bool) {
	branch := driverBranch(driver)
	for _, r := range nvlink5Table() {
		if r.Xid != code || r.Status != n.Status || !r.isUnit(n.Unit) {
			continue
		}
		v1, v2 := fits(r.V1, n.Intr), fits(r.V2, n.Intr)
		if v1 && (branch == 0 || branch < firstV2) || v2 && (branch == 0 || branch >= firstV2) {
			return r, true
		}
	}
	return nvlink5Row{}, false
}

// isUnit says whether the row is about the unit: "TLW_RX/TLW_RX_PIPE0" has two names.
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

// driverBranch is the number before the first dot of a driver's version, 0 if
// it is not known.
func driverBranch(version string) int {
	branch, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(branch)
	if err != nil {
		return 0
	}
	return n
}

// class is what the row makes of an event.
func (r nvlink5Row) class() XidClass {
	switch r.Resolution {
	case "RESET_GPU":
		return XidReset
	case "XID_154_EVAL":
		return XidFollow
	}
	if strings.HasPrefix(r.Investigate, "INVESTIGATE_") { // a cable, a host
		return XidWatch
	}
	return XidIgnore
}

// decodeXid is the class of an event whose row says DECODE, and why. What no
// row decodes is watched: the driver's Xid 154 says if there is more to do.
func decodeXid(code int, text, driver string) (class XidClass, what string) {
	n, ok := parseNVLink5(text)
	if !ok {
		return XidWatch, "cannot be decoded"
	}
	what = n.Unit
	if n.Link != "" {
		what += " on link " + n.Link
	}
	r, ok := decodeNVLink5(code, n, driver)
	if !ok {
		return XidWatch, fmt.Sprintf("%s, %s, not in NVIDIA's table", what, n.Word)
	}
	what += ", " + r.Severity
	if strings.HasPrefix(r.Investigate, "INVESTIGATE_") {
		what += ", " + r.Investigate
	}
	return r.class(), what
}
