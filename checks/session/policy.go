package session

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Excuse returns findings with each failure that is an error in the configuration made unknown:
// one wrong line that reaches a whole fleet must drain no node. lacks is the argument that the
// line does not have or cannot have; such a line says nothing about the node.
func Excuse(list []checks.Finding, lacks string) []checks.Finding {
	list = slices.Clone(list)
	for i, f := range list {
		if f.Severity != checks.Fail || lacks == "" && !IsConfigError(f.Code) {
			continue
		}
		list[i].Severity = checks.Unknown
		if lacks != "" {
			list[i].Message = strings.TrimSuffix(f.Message, ".") + "; " + lacks
			list[i].Code, list[i].Remedy = "config.usage", checks.FixConfig
		}
	}
	return list
}

// IsConfigError reports whether a code is that of an error in a line of the configuration.
func IsConfigError(code string) bool { return strings.HasPrefix(code, "config.") }
