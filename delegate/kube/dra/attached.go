package dra

import (
	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf/nad"
)

// Device returns what the plugin records, in the [nad.Origin] of the attachment, of the
// network n of c.
func (c Claim) Device(n Network) nad.Claim {
	return nad.Claim{UID: c.UID, Name: c.Name, Request: n.Request, Pool: n.Pool, Device: n.Device, Share: n.Share}
}

// Attached returns those of all that are there because of the claim, in their order: the
// origin that is recorded with each of them says so. It is for Config.Attachments.
func (c Ref) Attached(all []delegate.Attached) []Attachment {
	var attached []Attachment
	for _, a := range all {
		of := nad.ParseOrigin(a.Origin).Claim
		if of.UID == "" || of.UID != c.UID || nad.PodOf(a.Args).UID != c.Pod {
			continue
		}
		attached = append(attached, Attachment{DeviceID: DeviceID{Pool: of.Pool, Device: of.Device, Share: of.Share}, IfName: a.IfName, Result: a.Result})
	}
	return attached
}
