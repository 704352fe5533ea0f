package main

import (
	"context"
	"log/slog"
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

// logIgnored logs each key of the file that has no effect. A key that is not known is a
// warning: it may be misspelt.
func (d *daemon) logIgnored(ctx context.Context) {
	for _, key := range d.conf.ignored {
		level, attrs := slog.LevelWarn, []slog.Attr{slog.String("key", key)}
		why, _ := withoutEffect(key)
		if folded(d.conf.cluster.Keys())[strings.ToLower(key)] != nil {
			why = "there is no Kubernetes cluster: the daemon has neither a kubeconfig nor the token of a pod"
		}
		if why != "" {
			level, attrs = slog.LevelInfo, append(attrs, slog.String("why", why))
		}
		d.log.LogAttrs(ctx, level, "configuration key without effect", attrs...)
	}
	if d.conf.ofMultus {
		d.log.LogAttrs(ctx, slog.LevelInfo, "the file is one of Multus: legacyArgs is true unless the file says otherwise")
	}
}
