// Package dra attaches pods to networks by ResourceClaim (Dynamic Resource Allocation). It is
// the part of a node's DRA driver that belongs into the daemon of a meta-plugin.
//
// The devices of the driver are networks. A [Driver] does these things in the life of a pod:
//
//  1. It publishes what the node can do as ResourceSlices (Config.Networks), and the
//     scheduler places pods by them.
//  2. Before the kubelet creates the pod, it asks the driver to prepare its claims. The driver
//     checks and records what they want, under the pod's UID, and nothing else.
//  3. In the ADD of the pod the plugin asks for the networks of its claims ([Driver.Claims]) and
//     attaches them together with all others of the pod: one transaction, undone together,
//     with the runtime's time limit. No NRI is needed.
//  4. [Driver.UpdateMetadata] and [Driver.Attached] tell the containers and the API server what
//     the pod is attached to.
//  5. After the end of the pod the kubelet releases the claims. The driver has removed what the
//     DEL has left, and forgets the claim.
//
// Only steps 1 and 4, and the kubelet's request in step 2, need the API server. A restart at
// any point loses nothing: [Config.Dir] says what is prepared, and the records of the plugin
// say what is attached.
//
// The driver of k8s.io/dynamic-resource-allocation has all of client-go's API groups. Package
// kube does not import it, so a daemon without ResourceClaims does not contain it.
//
// # The files
//
// parameters.go and claim.go say what a claim wants, without an API. store.go keeps it, and
// attached.go finds and detaches the attachments of a claim. claims.go has them for the ADD of a
// pod. driver.go, configured by config.go, answers the kubelet, whose sockets are in serve.go.
// device_status.go computes the status of a claim, and write.go writes it. sweep.go forgets claims
// that nobody has released. offer.go makes devices of networks, and offering.go publishes them.
package dra
