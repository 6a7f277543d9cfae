// Package all registers the checks of every family. To add a family (a package below checks) to
// the program, add a line here.
package all

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/active" // a family registers its checks
	_ "github.com/nhc-gpu/nhc-gpu/checks/dcgm"
	_ "github.com/nhc-gpu/nhc-gpu/checks/fabric"
	_ "github.com/nhc-gpu/nhc-gpu/checks/gpu"
	_ "github.com/nhc-gpu/nhc-gpu/checks/jobs"
	_ "github.com/nhc-gpu/nhc-gpu/checks/lbnl"
	_ "github.com/nhc-gpu/nhc-gpu/checks/pcie"
	_ "github.com/nhc-gpu/nhc-gpu/checks/topology"
	_ "github.com/nhc-gpu/nhc-gpu/checks/xid"
)
