// A ping-pong between goroutines that call librdmacm and libibverbs by cgo.
//
//	pingpong PORT             the server
//	pingpong PORT ADDRESS     the client
//
// Each goroutine of the client has a connection of its own to a goroutine of the server. The client sends messages of
// many lengths, which the server answers with the same bytes. The client also writes to the server's memory, reads
// this memory, and compares the bytes. Meanwhile, further goroutines of the client keep the garbage collector busy, and
// access a nil pointer: the library's handler of SIGSEGV has to pass this signal on to Go's handler.
package main

/*
#cgo LDFLAGS: -libverbs -lrdmacm
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <string.h>

static struct rdma_addrinfo *resolve(const char *node, const char *port, int flags) {
	struct rdma_addrinfo hints, *res = NULL;
	memset(&hints, 0, sizeof hints);
	hints.ai_flags = flags;
	hints.ai_port_space = RDMA_PS_TCP;
	return rdma_getaddrinfo((char *)node, (char *)port, &hints, &res) ? NULL : res;
}

static struct ibv_qp_init_attr attributes(void) {
	struct ibv_qp_init_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.sq_sig_all = 1;
	return attr;
}

// Waits for one completion. Returns its number of bytes, or -1 if the request has failed.
static int sent(struct rdma_cm_id *id) {
	struct ibv_wc wc;
	return rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS ? 0 : -1;
}

static int received(struct rdma_cm_id *id) {
	struct ibv_wc wc;
	return rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS ? (int)wc.byte_len : -1;
}
*/
import "C"

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	goroutines = 8
	rounds     = 200
	// The first half of the memory is for messages, the second half for Writes and Reads.
	size = 1 << 18
	half = size / 2
)

func check(good bool, what string) {
	if !good {
		fmt.Println("FAILED:", what)
		os.Exit(1)
	}
}

// An end of a connection, and its registered memory.
type end struct {
	id  *C.struct_rdma_cm_id
	mr  *C.struct_ibv_mr
	all []byte
}

func newEnd(id *C.struct_rdma_cm_id) end {
	memory := C.malloc(size)
	access := C.int(C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_WRITE | C.IBV_ACCESS_REMOTE_READ)
	mr := C.ibv_reg_mr(id.pd, memory, size, access)
	check(mr != nil, "ibv_reg_mr")
	return end{id, mr, unsafe.Slice((*byte)(memory), size)}
}

func (e end) postReceive() {
	check(C.rdma_post_recv(e.id, nil, unsafe.Pointer(&e.all[0]), half, e.mr) == 0, "rdma_post_recv")
}

func (e end) send(length int) {
	status := C.rdma_post_send(e.id, nil, unsafe.Pointer(&e.all[0]), C.size_t(length), e.mr, 0)
	check(status == 0 && C.sent(e.id) == 0, "a Send")
}

func (e end) receive() int {
	length := int(C.received(e.id))
	check(length >= 0, "a receive")
	return length
}

func (e end) close() {
	C.rdma_disconnect(e.id)
	C.rdma_dereg_mr(e.mr)
	C.free(unsafe.Pointer(&e.all[0]))
	C.rdma_destroy_ep(e.id)
}

func serve(id *C.struct_rdma_cm_id) {
	e := newEnd(id)
	e.postReceive()
	check(C.rdma_accept(id, nil) == 0, "rdma_accept")
	// The client learns where the second half is.
	e.receive()
	e.postReceive()
	binary.LittleEndian.PutUint64(e.all, uint64(uintptr(unsafe.Pointer(&e.all[half]))))
	binary.LittleEndian.PutUint32(e.all[8:], uint32(e.mr.rkey))
	e.send(12)
	for round := 0; round < rounds; round++ {
		length := e.receive()
		message := append([]byte(nil), e.all[:length]...)
		e.postReceive()
		copy(e.all, message)
		e.send(length)
	}
	// The client has read all bytes before the client sends the last message.
	e.receive()
	e.close()
}

func server(port *C.char) {
	address := C.resolve(nil, port, C.RAI_PASSIVE)
	check(address != nil, "rdma_getaddrinfo")
	attr := C.attributes()
	var listener *C.struct_rdma_cm_id
	check(C.rdma_create_ep(&listener, address, nil, &attr) == 0, "rdma_create_ep")
	check(C.rdma_listen(listener, goroutines) == 0, "rdma_listen")
	var all sync.WaitGroup
	for i := 0; i < goroutines; i++ {
		var id *C.struct_rdma_cm_id
		check(C.rdma_get_request(listener, &id) == 0, "rdma_get_request")
		all.Add(1)
		go func() {
			defer all.Done()
			serve(id)
		}()
	}
	all.Wait()
	C.rdma_destroy_ep(listener)
}

func use(address *C.struct_rdma_addrinfo, seed int64) {
	attr := C.attributes()
	var id *C.struct_rdma_cm_id
	check(C.rdma_create_ep(&id, address, nil, &attr) == 0, "rdma_create_ep")
	e := newEnd(id)
	e.postReceive()
	check(C.rdma_connect(id, nil) == 0, "rdma_connect")
	e.send(1)
	check(e.receive() == 12, "the message with the address of the memory")
	remote := C.uint64_t(binary.LittleEndian.Uint64(e.all))
	key := C.uint32_t(binary.LittleEndian.Uint32(e.all[8:]))
	random := rand.New(rand.NewSource(seed))
	for round := 0; round < rounds; round++ {
		message := make([]byte, 1+random.Intn(half))
		random.Read(message)
		length := C.size_t(len(message))

		e.postReceive()
		copy(e.all, message)
		check(C.rdma_post_send(id, nil, unsafe.Pointer(&e.all[0]), length, e.mr, 0) == 0, "rdma_post_send")
		check(C.sent(id) == 0, "a Send")
		check(e.receive() == len(message) && bytes.Equal(e.all[:len(message)], message), "the answer's bytes")

		second := unsafe.Pointer(&e.all[half])
		copy(e.all[half:], message)
		check(C.rdma_post_write(id, nil, second, length, e.mr, 0, remote, key) == 0 && C.sent(id) == 0, "a Write")
		for i := range message {
			e.all[half+i] = 0
		}
		check(C.rdma_post_read(id, nil, second, length, e.mr, 0, remote, key) == 0 && C.sent(id) == 0, "a Read")
		check(bytes.Equal(e.all[half:half+len(message)], message), "the bytes that were written and read")
	}
	e.send(1)
	e.close()
}

// Accesses a nil pointer. Go turns the signal into a panic, from which this function recovers.
func faults() (recovered bool) {
	defer func() { recovered = recover() != nil }()
	var nothing *[16]int
	runtime.KeepAlive(nothing[3])
	return false
}

func client(port, node *C.char) {
	address := C.resolve(node, port, 0)
	check(address != nil, "rdma_getaddrinfo")
	var done int32
	var all, beside sync.WaitGroup
	for i := 0; i < goroutines; i++ {
		all.Add(1)
		go func(seed int64) {
			defer all.Done()
			use(address, seed)
		}(int64(i))
	}
	faulted := 0
	beside.Add(1)
	go func() {
		defer beside.Done()
		for atomic.LoadInt32(&done) == 0 {
			check(faults(), "a nil pointer makes a panic")
			faulted++
			runtime.GC()
		}
	}()
	all.Wait()
	atomic.StoreInt32(&done, 1)
	beside.Wait()
	check(faulted > 0, "no goroutine accessed a nil pointer meanwhile")
	fmt.Printf("%d goroutines have compared %d messages\n", goroutines, goroutines*rounds)
}

func main() {
	port := C.CString(os.Args[1])
	if len(os.Args) > 2 {
		client(port, C.CString(os.Args[2]))
	} else {
		server(port)
	}
}
