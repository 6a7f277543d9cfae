package network

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Reporter is a health reporter of devlink: a part of an adapter, its firmware or its queues, that
// the driver watches.
type Reporter struct {
	Name     string `json:"name"`  // fw, fw_fatal, rx, tx
	State    string `json:"state"` // healthy, error
	Errors   uint64 `json:"errors"`
	Recovers uint64 `json:"recoveries"`
}

func (r Reporter) String() string {
	return fmt.Sprintf("devlink health %s: %s, %d errors, %d recoveries", r.Name, r.State, r.Errors, r.Recovers)
}

// DevlinkHealth reads the health reporters of a PCI device's driver. It ignores reporters that have
// never counted an error. There are none if the kernel or the driver has no devlink.
func DevlinkHealth(pci string) ([]Reporter, error) {
	g, err := dialGenl()
	if err != nil {
		return nil, err
	}
	defer g.close()
	family, err := g.findFamily(unix.DEVLINK_GENL_NAME)
	if err != nil {
		return nil, err
	}
	request := putText(nil, unix.DEVLINK_ATTR_BUS_NAME, "pci")
	request = putText(request, unix.DEVLINK_ATTR_DEV_NAME, pci)
	answers, err := g.ask(family, unix.DEVLINK_CMD_HEALTH_REPORTER_GET, true, request)
	return parseReporters(answers, "pci", pci), err
}

// parseReporters parses the answers; kernels before 6.2 answer a dump with the reporters of all
// devices.
func parseReporters(answers [][]attr, bus, device string) (list []Reporter) {
	for _, answer := range answers {
		var r Reporter
		var onBus, name string
		for _, a := range answer {
			switch a.kind {
			case unix.DEVLINK_ATTR_BUS_NAME:
				onBus = a.text()
			case unix.DEVLINK_ATTR_DEV_NAME:
				name = a.text()
			case unix.DEVLINK_ATTR_HEALTH_REPORTER:
				for _, x := range parseAttrs(a.value) {
					switch x.kind {
					case unix.DEVLINK_ATTR_HEALTH_REPORTER_NAME:
						r.Name = x.text()
					case unix.DEVLINK_ATTR_HEALTH_REPORTER_STATE:
						r.State = map[uint64]string{0: "healthy", 1: "error"}[x.number()]
					case unix.DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT:
						r.Errors = x.number()
					case unix.DEVLINK_ATTR_HEALTH_REPORTER_RECOVER_COUNT:
						r.Recovers = x.number()
					}
				}
			}
		}
		if onBus == bus && name == device && r.Name != "" && (r.Errors > 0 || r.State != "healthy") {
			list = append(list, r)
		}
	}
	return list
}
