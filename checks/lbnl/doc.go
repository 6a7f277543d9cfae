// Package lbnl has the checks of LBNL NHC, and checks of services, files and the network in
// the same style.
package lbnl
