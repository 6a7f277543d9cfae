package session

import (
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Soften returns findings as a site's policy has them: an action below drain turns failures
// into warnings, or into skips.
func Soften(list []checks.Finding, action conf.Action) []checks.Finding {
	severity := checks.Warn
	switch action {
	case conf.Nothing:
		severity = checks.Skip
	case conf.Warn:
	default:
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		if list[i].Severity == checks.Fail {
			list[i].Severity = severity
		}
	}
	return list
}
