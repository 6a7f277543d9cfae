package fakesys

import "fmt"

// EDACModule returns the directory of a memory module below the root: two channels of each controller have two slots.
func EDACModule(mc, module int) string {
	return fmt.Sprintf("sys/devices/system/edac/mc/mc%d/dimm%d", mc, module)
}

// AddEDAC adds the memory of two sockets with four controllers and 16 DIMMs each, as i10nm_edac shows it.
func (n *Node) AddEDAC() *Node {
	n.Files["proc/meminfo"] = "MemTotal:       2113512844 kB\nMemFree:        2000000000 kB\nHardwareCorrupted:     0 kB\n"
	for mc := range 8 {
		dir := fmt.Sprintf("sys/devices/system/edac/mc/mc%d/", mc)
		n.Files[dir+"mc_name"] = fmt.Sprintf("Intel_10nm Socket#%d IMC#%d\n", mc/4, mc%4)
		for _, file := range []string{"ue_count", "ce_count", "ue_noinfo_count", "ce_noinfo_count"} {
			n.Files[dir+file] = "0\n"
		}
		for i := range 4 {
			dimm := EDACModule(mc, i) + "/"
			n.Files[dimm+"dimm_label"] = fmt.Sprintf("CPU_SrcID#%d_MC#%d_Chan#%d_DIMM#%d\n", mc/4, mc%4, i/2, i%2)
			n.Files[dimm+"dimm_location"] = fmt.Sprintf("channel %d slot %d \n", i/2, i%2)
			n.Files[dimm+"dimm_ue_count"], n.Files[dimm+"dimm_ce_count"] = "0\n", "0\n"
		}
	}
	return n
}
