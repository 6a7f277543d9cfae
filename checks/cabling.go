package checks

import (
	"fmt"
	"slices"
	"strings"
)

// discovered matches a line of ibnetdiscover -p, from the port report of infiniband-diags: type,
// LID, port number and GUID of a port, width and speed, the same for the port at the far
// end, and the names of the two nodes.
var discovered = Lazily(`^(CA|RT|SW)\s+\d+\s+(\d+)\s+0x([0-9a-fA-F]{1,16})\s+\S+\s+\S+\s+-\s+(CA|RT|SW)\s+\d+\s+(\d+)\s+0x([0-9a-fA-F]{1,16})\s+\(\s*'(.*)' - '(.*)'\s*\)\s*$`)

// switchName cuts the name of a managed switch out of a subnet manager's node description,
// "MF0;leaf03:MQM9700/U1".
var switchName = Lazily(`^[A-Z]+\d*;(.+):[^:]*$`)

// Cabling turns the output of "ibnetdiscover -p" into the list of far ends, one line for each
// adapter port. Switches with the same name get their GUID added. It also returns the number
// find ports.
func Cabling(text string) (list string, ports int) {
	type link struct{ guid, port, far, farPort, farGUID, near string }
	var links []link
	guids := map[string]map[string]bool{} // by name
	for line := range strings.Lines(text) {
		m := discovered().FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		far := m[8]
		if s := switchName().FindStringSubmatch(far); s != nil {
			far = s[1]
		}
		if far = strings.TrimSpace(strings.ReplaceAll(far, "#", " ")); guids[far] == nil {
			guids[far] = map[string]bool{}
		}
		guids[far][m[6]] = true
		if m[1] != "SW" {
			links = append(links, link{fmt.Sprintf("0x%016s", strings.ToLower(m[3])), m[2], far, m[5], strings.ToLower(m[6]), m[7]})
		}
	}
	var lines []string
	for _, l := range links {
		far := l.far
		if len(guids[far]) > 1 || far == "" {
			far = strings.TrimSpace(far + " 0x" + l.farGUID)
		}
		lines = append(lines, fmt.Sprintf("%s,%s %s port %s # %s\n", l.guid, l.port, far, l.farPort, strings.ReplaceAll(l.near, "\n", " ")))
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	return strings.Join(lines, ""), len(lines)
}
