package fakesys

import (
	"fmt"
	"strconv"
	"strings"
)

// AddBond adds existing interfaces to a new bond, all of them up.
func (n *Node) AddBond(name, mode string, members ...string) *Node {
	speed := 0
	for _, m := range members {
		one, _ := strconv.Atoi(strings.TrimSpace(n.Files[n.Dir(m)+"/speed"]))
		speed += one
	}
	n.AddNet(Net{Name: name, Speed: strconv.Itoa(speed), Index: 0xb0})
	n.Set(name, "bonding/mode", mode).Set(name, "bonding/slaves", strings.Join(members, " ")).Set(name, "bonding/mii_status", "up")
	if strings.HasPrefix(mode, "802.3ad") {
		n.Set(name, "bonding/ad_aggregator", "1").Set(name, "bonding/ad_partner_mac", "00:1c:73:00:00:99").Set(name, "bonding/ad_num_ports", strconv.Itoa(len(members)))
	}
	if mode, _, _ := strings.Cut(mode, " "); mode == "active-backup" || mode == "balance-tlb" || mode == "balance-alb" {
		n.Set(name, "bonding/active_slave", members[0])
	}
	for _, m := range members {
		n.Above(name, m)
		n.Set(m, "bonding_slave/mii_status", "up").Set(m, "bonding_slave/state", "active")
		if strings.HasPrefix(mode, "802.3ad") {
			n.Set(m, "bonding_slave/ad_aggregator_id", "1")
		}
	}
	return n
}

// Above puts one interface above another: a VLAN, a bridge.
func (n *Node) Above(upper, lower string) *Node {
	n.Links[n.Dir(upper)+"/lower_"+lower] = "../../../" + strings.TrimPrefix(n.Dir(lower), "sys/devices/")
	return n
}

// SMART is the health log of a disk.
type SMART struct {
	Warning      byte // bits
	Celsius      int
	Spare, Limit byte // percent
	Used         byte // percent
	MediaErrors  uint32
}

// Page returns the log in the disk's format, log page 02h.
func (s SMART) Page() string {
	page := make([]byte, 512)
	kelvin := s.Celsius + 273
	page[0], page[1], page[2], page[3], page[4], page[5] = s.Warning, byte(kelvin), byte(kelvin>>8), s.Spare, s.Limit, s.Used
	for i := range 4 {
		page[160+i] = byte(s.MediaErrors >> (8 * i))
	}
	return string(page)
}

// Healthy is the SMART of a disk that has been in use for a while.
var Healthy = SMART{Celsius: 38, Spare: 100, Limit: 10, Used: 3}

// SetSMART sets the health log of the disk nvmeI.
func (n *Node) SetSMART(i int, s SMART) *Node {
	n.Files[fmt.Sprintf("dev/nvme%d", i)] = s.Page()
	return n
}

// AddNameServers adds two name servers, and their answers, to the node.
func (n *Node) AddNameServers() *Node {
	n.Files["etc/resolv.conf"] = "# made up\nsearch cluster.example\nnameserver 10.0.0.53\nnameserver 10.0.0.54\noptions timeout:2\n"
	for _, server := range []string{"10.0.0.53", "10.0.0.54"} {
		n.Answers(server, ". NS 0.004 0 13", "login.cluster.example. A 0.001 0 1", "six.cluster.example. A 0.001 0 0", "six.cluster.example. AAAA 0.001 0 1", "* * 0.002 3 0")
	}
	return n
}

// Answers sets the answers of a name server: "NAME TYPE SECONDS CODE ANSWERS".
func (n *Node) Answers(server string, lines ...string) *Node {
	n.Files["recorded/dns/"+server] = strings.Join(lines, "\n") + "\n"
	return n
}
