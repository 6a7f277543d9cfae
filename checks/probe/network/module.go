package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Module is a transceiver or cable, as its own memory describes it. Missing values are "" or nil.
type Module struct {
	Form    string    `json:"form,omitempty"` // QSFP28, OSFP
	Vendor  string    `json:"vendor,omitempty"`
	Part    string    `json:"part,omitempty"`
	Serial  string    `json:"serial,omitempty"`
	Celsius *float64  `json:"temperature_c,omitempty"`
	Receive []float64 `json:"rx_power_dbm,omitempty"` // of each lane
	Send    []float64 `json:"tx_power_dbm,omitempty"`
}

func (m *Module) String() string {
	words := []string{strings.Join(strings.Fields("transceiver "+m.Form+" "+m.Vendor+" "+m.Part), " ")}
	if m.Serial != "" {
		words = append(words, "serial "+m.Serial)
	}
	if m.Celsius != nil {
		words = append(words, fmt.Sprintf("%.0f C", *m.Celsius))
	}
	for _, p := range []struct {
		what string
		dbm  []float64
	}{{"receives", m.Receive}, {"sends", m.Send}} {
		var text strings.Builder
		text.WriteString(p.what)
		for _, dbm := range p.dbm {
			fmt.Fprintf(&text, " %.1f", dbm)
		}
		if len(p.dbm) > 0 {
			words = append(words, text.String()+" dBm")
		}
	}
	return strings.Join(words, ", ")
}

// The memory of a module: the I2C address of its pages, and of the diagnostics of SFPs.
const (
	modulePage  = 128 // bytes; the lower half always exists, the upper half is one of several pages
	moduleI2C   = 0x50
	moduleDiag  = 0x51
	moduleLanes = 0x11 // the page with the powers of lanes, CMIS
)

// moduleReader reads bytes of a page of a module's memory, at an offset of 0 to 255.
type moduleReader func(page, i2c byte, offset, length int) ([]byte, error)

// Identifiers of forms, SFF-8024 table 4-1.
var moduleForms = map[byte]string{
	0x03: "SFP", 0x0b: "DWDM-SFP", 0x0c: "QSFP", 0x0d: "QSFP+", 0x11: "QSFP28", 0x18: "QSFP-DD", 0x19: "OSFP", 0x1a: "SFP-DD", 0x1b: "DSFP", 0x1e: "QSFP+ CMIS", 0x1f: "SFP-DD CMIS",
}

// readModule describes the plugged module: SFF-8472 (SFP), SFF-8636 (QSFP+, QSFP28) or CMIS
// (QSFP-DD, OSFP and later). The error is [fs.ErrNotExist] if there is none, or its form is
// unknown.
func readModule(read moduleReader) (*Module, error) {
	low, err := read(0, moduleI2C, 0, modulePage)
	if err != nil {
		return nil, err
	}
	if len(low) < modulePage {
		return nil, fmt.Errorf("%d bytes of a module, want %d: %w", len(low), modulePage, fs.ErrInvalid)
	}
	m := &Module{Form: moduleForms[low[0]]}
	switch low[0] {
	case 0x03, 0x0b:
		m.parseSFP(low, read)
		return m, nil
	case 0x0c, 0x0d, 0x11, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f:
	default:
		return nil, fmt.Errorf("module of form %#x: %w", low[0], fs.ErrNotExist)
	}
	high, err := read(0, moduleI2C, modulePage, modulePage)
	if err != nil || len(high) < modulePage {
		return nil, errors.Join(err, fs.ErrInvalid)
	}
	text := func(from, to int) string { return pci.CleanText(string(high[from-modulePage : to-modulePage])) }
	if low[0] <= 0x11 {
		m.Vendor, m.Part, m.Serial = text(148, 164), text(168, 184), text(196, 212)
		if high[147-modulePage]>>4 < 0xa { // higher values are copper cables, which measure nothing
			m.Celsius = parseCelsius(low[22:])
			m.Receive, m.Send = parsePowers(low[34:42]), parsePowers(low[50:58])
		}
		return m, nil
	}
	m.Vendor, m.Part, m.Serial = text(129, 145), text(148, 164), text(166, 182)
	const flat = 0x80 // only one page, as in copper cables
	if low[2]&flat == 0 {
		m.Celsius = parseCelsius(low[14:])
		if lanes, err := read(moduleLanes, moduleI2C, modulePage, modulePage); err == nil && len(lanes) >= modulePage {
			m.Send, m.Receive = parsePowers(lanes[154-modulePage:170-modulePage]), parsePowers(lanes[186-modulePage:202-modulePage])
		}
	}
	return m, nil
}

// parseSFP parses SFF-8472. It ignores powers that the host would have to calibrate.
func (m *Module) parseSFP(low []byte, read moduleReader) {
	text := func(from, to int) string { return pci.CleanText(string(low[from:to])) }
	m.Vendor, m.Part, m.Serial = text(20, 36), text(40, 56), text(68, 84)
	const diagnostics, calibrated = 0x40, 0x20
	if low[92]&diagnostics == 0 || low[92]&calibrated == 0 {
		return
	}
	if d, err := read(0, moduleDiag, 0, modulePage); err == nil && len(d) >= 106 {
		m.Celsius, m.Send, m.Receive = parseCelsius(d[96:]), parsePowers(d[102:104]), parsePowers(d[104:106])
	}
}

// parseCelsius converts a temperature in 1/256 degrees; 0 means not measured.
func parseCelsius(raw []byte) *float64 {
	n := int16(binary.BigEndian.Uint16(raw))
	if c := math.Round(float64(n)/25.6) / 10; n != 0 {
		return &c
	}
	return nil
}

// parsePowers converts lanes of 0.1 microwatt. It returns nil if all are 0: not measured, or dark. A
// lane without light beside others has -40 dBm, the lowest reading.
func parsePowers(raw []byte) (dbm []float64) {
	some := false
	for i := 0; i+1 < len(raw); i += 2 {
		n := max(binary.BigEndian.Uint16(raw[i:]), 1)
		some = some || n > 1
		dbm = append(dbm, math.Round(100*math.Log10(float64(n)/10000))/10)
	}
	if !some {
		return nil
	}
	return dbm
}

// ReadModule reads the module of a network interface. The driver may hang meanwhile: call it only
// in a separate process. For a recorded node it reads recorded/module/DEV, bytes in the form of
// "ethtool -m DEV raw on": 256 of the first page, then those of page 11h (CMIS) or of the
// diagnostics (SFP).
func ReadModule(h *probe.Host, dev string) (*Module, error) {
	if h.Recorded() {
		data, err := h.ReadFile("/recorded/module/" + dev)
		if err != nil {
			return nil, err
		}
		return readModule(func(page, i2c byte, offset, length int) ([]byte, error) {
			if page != 0 || i2c != moduleI2C {
				offset = 2*modulePage + offset%modulePage
			}
			return data[min(len(data), offset):min(len(data), offset+length)], nil
		})
	}
	m, err := readModule(func(page, i2c byte, offset, length int) ([]byte, error) {
		return readModuleByNetlink(dev, page, i2c, offset, length)
	})
	if err == nil {
		return m, nil
	}
	read, bad := readModuleByIoctl(dev)
	if bad != nil {
		return nil, errors.Join(err, bad)
	}
	return readModule(read)
}

// These are attributes of ethtool's messages about a module's memory (linux/ethtool_netlink.h).
const (
	eepromHeader = iota + 1
	eepromOffset
	eepromLength
	eepromPage
	eepromBank
	eepromI2C
	eepromData
)

// readModuleByNetlink reads bytes of a page: Linux 5.13.
func readModuleByNetlink(dev string, page, i2c byte, offset, length int) ([]byte, error) {
	g, err := dialGenl()
	if err != nil {
		return nil, err
	}
	defer g.close()
	family, err := g.findFamily(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return nil, err
	}
	request := putAttr(nil, eepromHeader|unix.NLA_F_NESTED, putText(nil, unix.ETHTOOL_A_HEADER_DEV_NAME, dev))
	request = putAttr(request, eepromOffset, binary.NativeEndian.AppendUint32(nil, uint32(offset)))
	request = putAttr(request, eepromLength, binary.NativeEndian.AppendUint32(nil, uint32(length)))
	request = putAttr(request, eepromPage, []byte{page})
	request = putAttr(request, eepromBank, []byte{0})
	request = putAttr(request, eepromI2C, []byte{i2c})
	answers, err := g.ask(family, unix.ETHTOOL_MSG_MODULE_EEPROM_GET, false, request)
	for _, answer := range answers {
		for _, a := range answer {
			if a.kind == eepromData {
				return a.value, nil
			}
		}
	}
	return nil, errors.Join(fmt.Errorf("module of %s: %w", dev, fs.ErrNotExist), err)
}

// readModuleByIoctl reads the whole memory of a module in the form of older drivers: ETHTOOL_GMODULEINFO
// and ETHTOOL_GMODULEEEPROM (linux/ethtool.h).
func readModuleByIoctl(dev string) (moduleReader, error) {
	const most = 640
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	call := func(data unsafe.Pointer) error {
		var request struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte // the kernel copies a whole struct ifreq
		}
		copy(request.name[:unix.IFNAMSIZ-1], dev)
		request.data = data
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return fmt.Errorf("read the module of %s: %w", dev, errno)
		}
		return nil
	}
	var info struct {
		command, kind, length uint32
		_                     [8]uint32
	}
	info.command = unix.ETHTOOL_GMODULEINFO
	if err := call(unsafe.Pointer(&info)); err != nil {
		return nil, err
	}
	var eeprom struct {
		command, magic, offset, length uint32
		data                           [most]byte
	}
	eeprom.command, eeprom.length = unix.ETHTOOL_GMODULEEEPROM, min(info.length, most)
	if err := call(unsafe.Pointer(&eeprom)); err != nil {
		return nil, err
	}
	data := eeprom.data[:min(eeprom.length, most)]
	return func(page, i2c byte, offset, length int) ([]byte, error) {
		if page != 0 {
			return nil, fs.ErrNotExist
		}
		if i2c == moduleDiag {
			offset += 2 * modulePage
		}
		return data[min(len(data), offset):min(len(data), offset+length)], nil
	}, nil
}
