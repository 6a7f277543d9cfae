package checks

import "slices"

// Groups are the groups of checks, in the order of lists. A group is for readers; policies use
// classes.
var Groups = []string{"GPU", "fabric", "node", "processes", "files", "jobs", "active"}

// Group returns the group of a check.
func (i Info) Group() string {
	switch i.Class() {
	case ClassActive:
		return "active"
	case ClassJob:
		return "jobs"
	case "gpu":
		return "GPU"
	case "ib", "eth", "net":
		return "fabric"
	case "ps":
		return "processes"
	case "file", "fs":
		return "files"
	}
	if slices.Contains([]string{"check_hw_eth", "check_hw_gm", "check_hw_ib"}, i.Name) {
		return "fabric"
	}
	return "node"
}
