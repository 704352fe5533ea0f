package main

import (
	"strings"
)

// withoutEffect returns why a key of the configuration of Multus's daemon has no effect
// here. The reason is empty for any other key. multus is true if only files of Multus
// have the key.
func withoutEffect(key string) (why string, multus bool) {
	switch strings.ToLower(key) {
	case "cniversion":
		return "the version of each request counts", false
	case "type":
		return "the type of each request counts", false
	case "logtostderr", "logfile", "logoptions":
		return "the log goes to stderr", true
	case "pernodecertificate":
		return "no certificate is requested: the daemon uses the token of its pod, or kubeconfig", true
	case "retrydeleteonerror":
		return "a record is always kept until its DEL has succeeded", true
	case "forcecniversion":
		return "the published network has the version of the primary network", true
	case "overridenetworkname":
		return "name chooses the name of the published network", true
	case "daemonsocketdir":
		return "a key of the shim: the daemon's own is socketDir", false
	case "delqueuedir":
		return "a key of the shim: the daemon's own is queueDir", false
	case "delpolicy", "delqueuewait":
		return "a key of the shim: put it into network", false
	}
	return "", false
}
