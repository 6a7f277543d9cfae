package checks

import (
	"fmt"
	"time"
)

// XidKey is the number of an Xid or SXid.
type XidKey struct {
	Switch bool `json:"switch,omitempty"` // an SXid, from an NVSwitch
	Code   int  `json:"code"`
}

func (k XidKey) String() string {
	if k.Switch {
		return fmt.Sprintf("SXid %d", k.Code)
	}
	return fmt.Sprintf("Xid %d", k.Code)
}

// Finding returns the code of findings about it.
func (k XidKey) Finding() string {
	if k.Switch {
		return fmt.Sprintf("gpu.sxid.%d", k.Code)
	}
	return fmt.Sprintf("gpu.xid.%d", k.Code)
}

// LogMark is a position in the kernel log of one boot.
type LogMark struct {
	Boot string `json:"boot"`
	Next uint64 `json:"next"` // the first record after it
}

// XidSeen is a burst of kernel log lines about one error of one GPU or
// NVSwitch.
type XidSeen struct {
	Code   int       `json:"code"`
	Switch bool      `json:"switch,omitempty"` // an SXid
	PCI    string    `json:"pci"`              // of the GPU or NVSwitch
	Name   string    `json:"name"`             // the meaning of the code
	Class  XidClass  `json:"class"`            // from the tables and the site's policy, before NVML is queried
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	Before bool      `json:"before,omitempty"` // it began before the mark: First, PID, By and Text can be older, too
	Lines  int       `json:"lines"`
	PID    string    `json:"pid,omitempty"`
	By     string    `json:"process,omitempty"`
	Text   string    `json:"text"` // find its first line
}

// Finding returns the code of check_gpu_xid's finding about it.
func (x XidSeen) Finding() string { return XidKey{Code: x.Code, Switch: x.Switch}.Finding() }

// String is "Xid 79", "SXid 20009".
func (x XidSeen) String() string { return XidKey{Code: x.Code, Switch: x.Switch}.String() }
