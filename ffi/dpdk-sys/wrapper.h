/* Input of bindgen: the DPDK headers, and definitions of what bindgen does not find in these headers.
 *
 * - bindgen does not bind macros that use RTE_BIT64(), so the constants K_* have the values of these macros.
 * - Field paths inside `struct rte_mbuf` differ between releases (flat, or in nested anonymous structs);
 *   offsetof() works in all releases. The accessors in src/mbuf.rs use these offsets.
 * - Inline functions are wrapped by wrap_static_fns.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_vhost.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_version.h>
#include <rte_vhost.h>

#include <linux/virtio_net.h>

#define OFFSET(name, field) static const uint64_t name = offsetof(struct rte_mbuf, field)

OFFSET(K_MBUF_BUF_ADDR, buf_addr);
OFFSET(K_MBUF_DATA_OFF, data_off);
OFFSET(K_MBUF_REFCNT, refcnt);
OFFSET(K_MBUF_NB_SEGS, nb_segs);
OFFSET(K_MBUF_OL_FLAGS, ol_flags);
OFFSET(K_MBUF_PKT_LEN, pkt_len);
OFFSET(K_MBUF_DATA_LEN, data_len);
OFFSET(K_MBUF_BUF_LEN, buf_len);
OFFSET(K_MBUF_POOL, pool);
OFFSET(K_MBUF_NEXT, next);
OFFSET(K_MBUF_TX_OFFLOAD, tx_offload);
OFFSET(K_MBUF_PRIV_SIZE, priv_size);

static const uint64_t K_MBUF_SIZE = sizeof(struct rte_mbuf);
static const uint64_t K_BAD_IOVA = RTE_BAD_IOVA;
static const uint64_t K_HEADROOM = RTE_PKTMBUF_HEADROOM;
static const uint64_t K_POOL_PRIVATE_SIZE = sizeof(struct rte_pktmbuf_pool_private);

static const uint64_t K_GUEST_CSUM = 1ULL << VIRTIO_NET_F_GUEST_CSUM;
static const uint64_t K_GUEST_TSO4 = 1ULL << VIRTIO_NET_F_GUEST_TSO4;
static const uint64_t K_GUEST_TSO6 = 1ULL << VIRTIO_NET_F_GUEST_TSO6;
static const uint64_t K_MRG_RXBUF = 1ULL << VIRTIO_NET_F_MRG_RXBUF;

static const uint64_t K_L2_LEN_SHIFT = RTE_MBUF_L2_LEN_OFS;
static const uint64_t K_L3_LEN_SHIFT = RTE_MBUF_L3_LEN_OFS;
static const uint64_t K_L4_LEN_SHIFT = RTE_MBUF_L4_LEN_OFS;
static const uint64_t K_TSO_SEGSZ_SHIFT = RTE_MBUF_TSO_SEGSZ_OFS;

static const uint64_t K_F_INDIRECT = RTE_MBUF_F_INDIRECT;
static const uint64_t K_F_EXTERNAL = RTE_MBUF_F_EXTERNAL;
static const uint64_t K_F_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t K_F_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t K_F_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t K_F_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t K_F_TX_L4_MASK = RTE_MBUF_F_TX_L4_MASK;
static const uint64_t K_F_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;
static const uint64_t K_F_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t K_F_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t K_F_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t K_F_RX_L4_CKSUM_NONE = RTE_MBUF_F_RX_L4_CKSUM_NONE;

static const uint64_t K_RX_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t K_RX_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t K_RX_TCP_LRO = RTE_ETH_RX_OFFLOAD_TCP_LRO;
static const uint64_t K_RX_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t K_RX_VLAN_FILTER = RTE_ETH_RX_OFFLOAD_VLAN_FILTER;
static const uint64_t K_RX_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t K_RX_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t K_TX_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t K_TX_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t K_TX_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t K_TX_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t K_RSS_IP = RTE_ETH_RSS_IP;
static const uint64_t K_RSS_TCP = RTE_ETH_RSS_TCP;
static const uint64_t K_RSS_IPV4 = RTE_ETH_RSS_IPV4;
static const uint64_t K_RSS_IPV4_TCP = RTE_ETH_RSS_NONFRAG_IPV4_TCP;
static const uint64_t K_RSS_IPV6 = RTE_ETH_RSS_IPV6;
static const uint64_t K_RSS_IPV6_TCP = RTE_ETH_RSS_NONFRAG_IPV6_TCP;

/* The address of rte_errno, which is a macro over a per-lcore variable. */
static inline int *rte_errno_ptr(void) { return &rte_errno; }

/* The address of the caller's part of a pool's private area. This part is behind DPDK's part. */
static inline void *uwarp_pool_private(struct rte_mempool *pool)
{
	return (char *)rte_mempool_get_priv(pool) + sizeof(struct rte_pktmbuf_pool_private);
}

/* Number of objects in the ring that all threads share. Needs constant time, unlike rte_mempool_avail_count(). */
static inline unsigned int uwarp_pool_common_count(const struct rte_mempool *pool)
{
	return rte_mempool_ops_get_count(pool);
}
